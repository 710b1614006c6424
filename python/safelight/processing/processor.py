"""`BaseMultiModalProcessor`: prompt and media to token ids and tensors, in two phases.

Phase 1 identifies, looks up the cache, joins what other requests are about to process, and submits
the decodes of the rest; nobody waits. Phase 2 processes what is still missing, updates the cache
in the order of the request, and merges. `apply` is phase 1, a wait, and phase 2. Must never decode
what a cache holds, nor wait for another request: only for the decode or the processing of an item
that both want, which whoever comes first runs.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from safelight.cache.pending import PendingItem
from safelight.cache.processor import MultiModalProcessorOnlyCache, ProcessorCacheEntry
from safelight.decodes import MediaDecodeJob, drain_media_decodes, try_submit_media_decodes
from safelight.errors import MediaError, RequestError, SafelightError
from safelight.inputs import (
    ItemPlace,
    MultiModalFieldConfig,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    is_text,
)
from safelight.inputs.fields import owned
from safelight.parse import ModalityDataItems, MultiModalDataItems
from safelight.processing import hf
from safelight.processing.declaration import Declaring, covered_by
from safelight.processing.identity import scope_mm_kwargs
from safelight.processing.info import ProcessingInfo
from safelight.processing.prompt_updates import PromptReplacement, apply_prompt_updates
from safelight.processing.request import MultiModalInputs, ProcessorInputs, hashes_of
from safelight.processing.state import ItemState, MultiModalApplyState
from safelight.processing.timing import TimingContext
from safelight.ref import MediaRef

__all__ = ["BaseMultiModalProcessor"]

_logger = logging.getLogger(__name__)

# Where processors run and what they return, whichever processor it is.
_OPERATORS_KWARGS = frozenset(("device", "return_tensors"))

# Modalities whose placeholder token transformers' processors name, as ``image_token_id``.
_NAMED_MODALITIES = ("image", "video", "audio")


class BaseMultiModalProcessor(Declaring, ABC):
    """Processes requests for one model. A family says how in three methods.

    What a family declares holds for the methods that its class has, and must be declared anew
    where one of them is overridden.

    Args:
        info: The model's processor and options.
    """

    # A family declares that `apply` is its two phases and nothing else. See `supports_two_phase`.
    two_phase: ClassVar[bool] = True

    # A family declares that its processor may run on several threads at once.
    processes_in_parallel: ClassVar[bool] = False

    # Set on a class of its own once the log says that its requests run whole.
    _is_told: ClassVar[bool] = False

    def __init__(self, info: ProcessingInfo) -> None:
        self.info = info
        self.data_parser = info.get_data_parser()
        overridden = self.get_overridden("two_phase") if self.two_phase else []
        if overridden and "_is_told" not in vars(type(self)):
            type(self)._is_told = True
            _logger.info(
                "%s overrides %s without declaring two_phase: requests run whole on one worker",
                type(self).__name__,
                ", ".join(overridden),
            )

    @property
    def supports_two_phase(self) -> bool:
        """Whether a renderer may run the phases apart.

        Declared by the class attribute `two_phase`. A subclass, a mixin or a patch that overrides
        `apply` or a part of the phases must come with a declaration of its own.
        """
        return self.holds("two_phase")

    @covered_by("processes_in_parallel")
    @abstractmethod
    def _get_mm_fields_config(
        self, hf_inputs: Mapping[str, Any], hf_processor_mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, MultiModalFieldConfig]:
        """Return the layout of each named tensor of the processor's output."""

    @covered_by("processes_in_parallel")
    @abstractmethod
    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, Any],
        out_mm_kwargs: MultiModalKwargsItems,
    ) -> Sequence[PromptReplacement]:
        """Return what the processed items make of their placeholders; there is at least one."""

    def _get_targets(self) -> Mapping[str, Sequence[Sequence[int]]]:
        """Return the token ids that stand for an item in a prompt, by modality.

        A prompt that has them without an item is refused: a model looks for the item wherever its
        token is, so that the token must not come from a text. By default the tokens that the
        processor names ``image_token_id``, ``video_token_id`` and ``audio_token_id``; a family
        whose prompts have others overrides this.
        """
        token_ids = {
            modality: getattr(self.info.hf_processor, f"{modality}_token_id", None)
            for modality in _NAMED_MODALITIES
        }
        return {name: [[int(id_)]] for name, id_ in token_ids.items() if id_ is not None}

    def _validate_kwargs(self, modality: str, kwargs: Mapping[str, Any]) -> None:
        """Refuse processor options that are not a request's to set. Raises `RequestError`.

        None may choose the server's devices, or make more of an item than its bytes justify.
        """
        del modality
        for name in _OPERATORS_KWARGS & kwargs.keys():
            raise RequestError(f"the processor option {name} is not a request's to set")

    def _validate_item(
        self, mm_items: MultiModalDataItems, modality: str, index: int, kwargs: Mapping[str, Any]
    ) -> None:
        """Refuse an item by what is known before it is decoded. Raises `MediaError`."""
        del mm_items, modality, index, kwargs

    @covered_by("processes_in_parallel")
    def _call_hf_processor(
        self, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Process decoded media; `mm_data` is what `get_processor_data` gives."""
        if "images" not in mm_data:
            return {}
        images = list(mm_data["images"])
        return hf.call_image_processor(self.info.image_processor, images, mm_kwargs)

    @covered_by("two_phase")
    def apply(
        self, inputs: ProcessorInputs, timing_ctx: TimingContext | None = None
    ) -> MultiModalInputs:
        """Process a request whole: phase 1, the decodes, phase 2.

        Raises:
            MediaError: An item cannot be decoded or processed; it names modality and index.
            RequestError: The prompt does not match the items, or the model does not take them.
        """
        with self.apply_phase1(inputs, timing_ctx) as state:
            state.wait_decodes()
            return self.apply_phase2(state)

    @covered_by("two_phase")
    def apply_phase1(
        self, inputs: ProcessorInputs, timing_ctx: TimingContext | None = None
    ) -> MultiModalApplyState:
        """Identify, look up the cache and submit the decodes of what it lacks; wait for nothing.

        What the cache has is held from here on, whatever it evicts. What another request is about
        to process is joined.

        The state must be closed, by `apply_phase2` or as a context manager. When this method
        fails, it closes what it started.

        Raises:
            MediaError: An item is refused by its header.
            RequestError: As `apply`.
        """
        timing = TimingContext(enabled=False) if timing_ctx is None else timing_ctx
        self.info.validate_counts(inputs.mm_data_items.get_all_counts())
        inputs.validate()
        for modality in inputs.mm_data_items:
            self._validate_kwargs(
                modality, scope_mm_kwargs(inputs.hf_processor_mm_kwargs, modality)
            )
        state = MultiModalApplyState(inputs, timing)
        try:
            self._check_items(state)
            if inputs.usable_cache is not None:
                with timing.record("hash"):
                    self._identify(state)
            with timing.record("look up"):
                self._look_up(state)
            state.submit_decodes()
        except BaseException:
            state.close()
            raise
        return state

    @covered_by("two_phase")
    def apply_phase2(self, state: MultiModalApplyState) -> MultiModalInputs:
        """Process what is missing, update the cache, and merge; then close the state.

        What another request processes at this moment is waited for, what one has processed is
        taken.

        Raises:
            MediaError: As `apply`.
            RequestError: As `apply`.
            RuntimeError: The state is closed.
        """
        if state.is_closed:
            raise RuntimeError("the state is closed")
        with state:
            state.wait_decodes()
            self._process(state)
            if state.hashes is None:
                with state.timing.record("hash"):
                    self._identify(state)
            return self._merge(state)

    def find_cached(
        self,
        cache: MultiModalProcessorOnlyCache,
        modality: str,
        uuid: str,
        *,
        media_io_kwargs: Mapping[str, Mapping[str, Any]],
        hf_processor_mm_kwargs: Mapping[str, Any],
    ) -> ProcessorCacheEntry | None:
        """Return what `cache` holds for a client's UUID, so that its media need not be fetched.

        The entry belongs into `ProcessorInputs.mm_entries`.
        """
        identity = self.info.identity_rules.identify(
            modality, None, uuid, media_io_kwargs, hf_processor_mm_kwargs
        )
        if not identity.is_name:
            return None
        return cache.find(self.info.fingerprint, identity.cache_name)

    @covered_by("two_phase")
    def _identify(self, state: MultiModalApplyState) -> None:
        identities = state.inputs.identify(self.info.identity_rules)
        for item in state.item_states:
            item.identity = identities[item.place.modality][item.index]
        state.hashes = hashes_of(identities)

    @covered_by("two_phase")
    def _look_up(self, state: MultiModalApplyState) -> None:
        """Give every item an entry, a pending item, or an equal item of the request that has one.

        The budget of media that the request need not decode is given back.
        """
        cache, entries = state.inputs.usable_cache, state.inputs.mm_entries
        missing = []
        for item in state.item_states:
            item.entry = entries.get(ItemPlace(item.place.modality, item.index))
            if item.entry is None:
                missing.append(item)
        if cache is None:
            for item in missing:
                item.pending = self._make_pending(state, item)
                if item.pending is None:
                    raise _no_media(item)
                state.pending.append(item.pending)
            return
        chosen = _one_of_each(missing)
        for item in missing:
            first = chosen[item.cache_name]
            if first is not item:
                item.duplicate_of = first
            elif not self._join(state, cache, item):
                continue
            if isinstance(item.raw, MediaRef):
                item.raw.refund()

    def _join(
        self, state: MultiModalApplyState, cache: MultiModalProcessorOnlyCache, item: ItemState
    ) -> bool:
        """Give `item` what the cache has, or its pending item; whether somebody else decodes."""
        fingerprint = self.info.fingerprint
        item.entry = cache.find(fingerprint, item.cache_name)
        if item.entry is not None:
            return True
        own = self._make_pending(state, item)
        found = cache.join(fingerprint, item.cache_name, own, state.pending)
        if found is None:
            raise _no_media(item)
        if isinstance(found, PendingItem):
            item.pending = found
            return found is not own
        item.entry = found
        return True

    def _make_pending(
        self, state: MultiModalApplyState, item: ItemState
    ) -> PendingItem[ProcessorCacheEntry] | None:
        """Return `item` over a share of its media that outlives the request; None without media."""
        if item.raw is None:
            return None
        alone = state.items[item.place.modality].select([item.index])
        media = item.raw.fork() if isinstance(item.raw, MediaRef) else None
        if media is not None:
            alone = alone.map_raw(lambda _: media)
        kwargs = self._scoped_kwargs(state.inputs, item.place.modality)
        return PendingItem(media, partial(self._process_item, alone, kwargs))

    @covered_by("two_phase")
    def _process(self, state: MultiModalApplyState) -> None:
        """Process what is pending, on several workers where the family allows, and commit it.

        This thread helps: a pool that is busy holds no request up. In a family that processes in
        parallel all items are processed before the first failure is raised; what went well is
        kept in any case.
        """
        cache, jobs = state.inputs.usable_cache, list[MediaDecodeJob]()
        items = [(item, item.pending) for item in state.item_states if item.pending is not None]
        is_parallel = len(items) > 1 and self.holds("processes_in_parallel")
        failure: Exception | None = None
        with state.timing.record("process"):
            try:
                if is_parallel:
                    work = [(*item.place, _Processing(pending)) for item, pending in items]
                    try_submit_media_decodes(work, jobs)
                for number, (item, pending) in enumerate(items):
                    try:
                        if number < len(jobs) and not jobs[number].future.cancel():
                            item.entry, is_miss = jobs[number].future.result()
                        else:
                            item.entry, is_miss = pending.process()
                    except Exception as error:  # noqa: BLE001 - raised below
                        failure = failure or _located(error, item)
                        if not is_parallel:
                            break
                        continue
                    item.is_hit = not is_miss
                    if cache is not None:
                        cache.commit(self.info.fingerprint, item.cache_name, item.entry, is_miss)
            finally:
                drain_media_decodes(jobs)
        if failure is not None:
            raise failure

    @covered_by("two_phase", "processes_in_parallel")
    def _process_item(
        self, items: ModalityDataItems[Any, Any], kwargs: Mapping[str, Any]
    ) -> ProcessorCacheEntry:
        """Process one item alone, so that what a cache keeps does not depend on its siblings.

        Raises:
            MediaError: The processor refuses the item, or what the request makes of it.
        """
        modality = items.modality
        try:
            hf_inputs = {
                **self._call_hf_processor(items.get_processor_data(), kwargs),
                **items.get_passthrough_data(),
            }
            config = self._get_mm_fields_config(hf_inputs, kwargs)
            outputs = MultiModalKwargsItems.from_hf_inputs(hf_inputs, config)
            (item,) = outputs[modality]
            updates = self._get_prompt_updates(
                MultiModalDataItems({modality: items}), kwargs, outputs
            )
        except SafelightError:
            raise
        except Exception as error:
            has_options = kwargs != scope_mm_kwargs(self.info.mm_processor_kwargs, modality)
            if not _is_fault_of_media(error, has_options):
                raise
            raise MediaError("the model's processor cannot process it") from error
        elems = {
            name: MultiModalFieldElem(_read_only(owned(elem.data)), elem.field)
            for name, elem in item.items()
        }
        return ProcessorCacheEntry(
            MultiModalKwargsItem(elems),
            [update.resolve(0) for update in updates if update.modality == modality],
        )

    def _scoped_kwargs(self, inputs: ProcessorInputs, modality: str) -> dict[str, Any]:
        # Scoped before they are merged, so that a request overrides an option of the server
        # whichever form the two have, and nothing else of it.
        return {
            **scope_mm_kwargs(self.info.mm_processor_kwargs, modality),
            **scope_mm_kwargs(inputs.hf_processor_mm_kwargs, modality),
        }

    def _check_items(self, state: MultiModalApplyState) -> None:
        for modality, items in state.items.items():
            kwargs = self._scoped_kwargs(state.inputs, modality)
            for index in range(items.get_count()):
                try:
                    self._validate_item(state.items, modality, index, kwargs)
                except MediaError as error:
                    raise error.at(modality, items.get_original_index(index)) from error

    def _tokenize(self, prompt: str | list[int]) -> list[int]:
        """Token ids of a prompt whose placeholders are not expanded."""
        if not isinstance(prompt, str):
            return prompt
        if not is_text(prompt):
            raise RequestError("the prompt is not valid text: it has a lone surrogate")
        token_ids: list[int] = self.info.tokenizer(prompt)["input_ids"]
        return token_ids

    @covered_by("two_phase")
    def _merge(self, state: MultiModalApplyState) -> MultiModalInputs:
        assert state.hashes is not None
        updates: dict[str, list[Any]] = {modality: [] for modality in state.items}
        hits: dict[str, list[bool]] = {modality: [] for modality in state.items}
        kwargs = MultiModalKwargsItems({modality: [] for modality in state.items})
        for item in state.item_states:
            entry, modality = (item.duplicate_of or item).entry, item.place.modality
            assert entry is not None
            kwargs[modality].append(entry.item)
            updates[modality] += entry.prompt_updates
            hits[modality].append(item.is_hit)
        with state.timing.record("tokenize"):
            token_ids = self._tokenize(state.inputs.prompt)
        with state.timing.record("expand"):
            token_ids, placeholders = apply_prompt_updates(
                token_ids, updates, targets=self._get_targets()
            )
        return MultiModalInputs(
            type="multimodal",
            prompt_token_ids=token_ids,
            mm_kwargs=kwargs,
            mm_hashes={modality: list(hashes) for modality, hashes in state.hashes.items()},
            mm_placeholders=placeholders,
            mm_cache_hits=hits,
        )


class _Processing(NamedTuple):
    """The processing of a pending item, in the form in which decodes are submitted."""

    pending: PendingItem[ProcessorCacheEntry]
    is_decoded: bool = False

    def decode(self) -> tuple[ProcessorCacheEntry, bool]:
        return self.pending.process()


def _one_of_each(items: Sequence[ItemState]) -> dict[str, ItemState]:
    """One item of each identity: the first that has media, if any."""
    chosen: dict[str, ItemState] = {}
    for item in items:
        first = chosen.setdefault(item.cache_name, item)
        if first.raw is None and item.raw is not None:
            chosen[item.cache_name] = item
    return chosen


def _no_media(item: ItemState) -> RequestError:
    """The refusal of an item that came as a UUID alone and that no cache holds."""
    modality, index = item.place
    return RequestError(f"{modality} {index} has a uuid but no media, and no cache holds it")


def _is_fault_of_media(error: Exception, has_options: bool) -> bool:
    """Whether a processor's error is of what it was given, and not the server's own."""
    if isinstance(error, (ValueError, ArithmeticError)):
        return True
    # A request's options can bring about anything but a want of memory, files and the like.
    # A plain RuntimeError is what torch raises for shapes; its others have classes of their own.
    is_servers = isinstance(error, (MemoryError, OSError, ImportError))
    is_servers |= isinstance(error, RuntimeError) and type(error) is not RuntimeError
    return has_options and not is_servers


def _located(error: Exception, item: ItemState) -> Exception:
    """Return what to raise for an item that failed: an error of its media names its place."""
    if not isinstance(error, MediaError):
        return error
    located = error.at(*item.place)
    located.__cause__ = error.__cause__ or error
    return located


def _read_only(value: Any) -> Any:
    """Mark a numpy array as read-only: it is shared between requests. Tensors have no such mark."""
    if hasattr(value, "setflags"):
        value.setflags(write=False)
    return value
