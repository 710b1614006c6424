"""`BaseMultiModalProcessor`: prompt and media to token ids and tensors, in two phases.

Phase 1 hashes, looks up the cache and submits the decodes of what it lacks; nobody waits. Phase 2
looks up again, processes what is still missing, updates the cache in the order of the request,
and merges. `apply` is phase 1, a wait, and phase 2. Must never decode what a cache holds.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from safelight.cache.processor import ProcessorCacheEntry
from safelight.errors import MediaError, RequestError, SafelightError
from safelight.inputs import (
    MultiModalFieldConfig,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    is_text,
)
from safelight.inputs.fields import owned
from safelight.parse import MultiModalDataItems
from safelight.pool import media_pool
from safelight.processing import hf
from safelight.processing.info import ProcessingInfo
from safelight.processing.prompt_updates import PromptReplacement, apply_prompt_updates
from safelight.processing.request import MultiModalInputs, ProcessorInputs, scope_mm_kwargs
from safelight.processing.state import MultiModalApplyState
from safelight.processing.timing import TimingContext
from safelight.ref import MediaRef

__all__ = ["BaseMultiModalProcessor"]

_logger = logging.getLogger(__name__)

# What the two phases are made of. A subclass that overrides one of these may do anything in it, so
# a declaration of two-phase support that it inherits says nothing about it.
_STEPS = frozenset(
    """apply apply_phase1 apply_phase2 _look_up _entries_with_cache _entries_without_cache
    _process _process_item _merge""".split()
)


# Where processors run and what they return, whichever processor it is.
_OPERATORS_KWARGS = frozenset(("device", "return_tensors"))


@dataclass(frozen=True)
class _Position:
    """An item's place in the request, and its identity where that is known."""

    modality: str
    index: int
    mm_hash: str | None

    @property
    def identity(self) -> str:
        """The hash within its modality: one UUID may name an image and something else."""
        assert self.mm_hash is not None
        return f"{self.modality}:{self.mm_hash}"


class BaseMultiModalProcessor(ABC):
    """Processes requests for one model. A family says how in three methods.

    Args:
        info: The model's processor and options.
    """

    # A family declares that `apply` is its two phases and nothing else. See `supports_two_phase`.
    two_phase: ClassVar[bool] = True

    # A family declares that its processor may run on several threads at once.
    processes_in_parallel: ClassVar[bool] = False

    _overridden_steps: ClassVar[frozenset[str]] = frozenset()
    # Set on a class of its own once the log says that its requests run whole.
    _is_told: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        overridden = _STEPS & vars(cls).keys()
        if overridden and "two_phase" not in vars(cls):
            cls.two_phase = False
        cls._overridden_steps = cls._overridden_steps | overridden

    def __init__(self, info: ProcessingInfo) -> None:
        self.info = info
        self.data_parser = info.get_data_parser()
        if not self.two_phase and "_is_told" not in vars(type(self)):
            type(self)._is_told = True
            _logger.info(
                "%s overrides %s without declaring two_phase: requests run whole on one worker",
                type(self).__name__,
                ", ".join(sorted(self._overridden_steps)),
            )

    @property
    def supports_two_phase(self) -> bool:
        """Whether a renderer may run the phases apart.

        Declared by the class attribute `two_phase`. A subclass that overrides `apply` or a phase
        must declare it anew.
        """
        return self.two_phase

    @abstractmethod
    def _get_mm_fields_config(
        self, hf_inputs: Mapping[str, Any], hf_processor_mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, MultiModalFieldConfig]:
        """Return the layout of each named tensor of the processor's output."""

    @abstractmethod
    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, Any],
        out_mm_kwargs: MultiModalKwargsItems,
    ) -> Sequence[PromptReplacement]:
        """Return what the processed items make of their placeholders.

        Asked without any items too, for the targets alone.
        """

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

    def _call_hf_processor(
        self, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Process decoded media; `mm_data` is what `get_processor_data` gives."""
        if "images" not in mm_data:
            return {}
        images = list(mm_data["images"])
        return hf.call_image_processor(self.info.image_processor, images, mm_kwargs)

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

    def apply_phase1(
        self, inputs: ProcessorInputs, timing_ctx: TimingContext | None = None
    ) -> MultiModalApplyState:
        """Hash, look up the cache and submit the decodes of what it lacks; wait for nothing.

        The state must be closed, by `apply_phase2` or as a context manager. When this method
        fails, it closes what it began.

        Raises:
            MediaError: An item is refused by its header.
            RequestError: As `apply`.
        """
        timing = TimingContext(enabled=False) if timing_ctx is None else timing_ctx
        self.info.validate_num_items(inputs.mm_data_items)
        _validate_request(inputs)
        for modality in inputs.mm_data_items:
            self._validate_kwargs(
                modality, scope_mm_kwargs(inputs.hf_processor_mm_kwargs, modality)
            )
        state = MultiModalApplyState(inputs, timing)
        try:
            self._check_items(state)
            if not _can_use_cache(inputs):
                for position in _positions(state):
                    _require_media(state, position)
                state.submit((place.modality, place.index) for place in _positions(state))
                return state
            with timing.record("hash"):
                state.hashes = inputs.get_mm_hashes(
                    self.info.model_id, self.info.mm_hasher_algorithm
                )
            with timing.record("look up"):
                misses = self._look_up(state)
            state.submit((place.modality, place.index) for place in misses)
        except BaseException:
            state.close()
            raise
        return state

    def apply_phase2(self, state: MultiModalApplyState) -> MultiModalInputs:
        """Process what is missing, update the cache, and merge; then close the state.

        The cache is looked up again, because other requests ran in between. What has newly
        become a miss is decoded now.

        Raises:
            MediaError: As `apply`.
            RequestError: As `apply`.
            RuntimeError: The state is closed.
        """
        if state.is_closed:
            raise RuntimeError("the state is closed")
        with state:
            state.wait_decodes()
            if _can_use_cache(state.inputs):
                entries, hits = self._entries_with_cache(state)
            else:
                entries, hits = self._entries_without_cache(state)
            return self._merge(state, entries, hits)

    def _look_up(self, state: MultiModalApplyState) -> list[_Position]:
        """Return what the cache lacks, each identity once; give back the budget of the rest."""
        cache, fingerprint = state.inputs.cache, self.info.fingerprint
        assert cache is not None
        misses: list[_Position] = []
        one_of_each = set(_one_of_each(state))
        for position in _positions(state):
            raw = _raw(state, position)
            if position in one_of_each and not cache.is_cached(fingerprint, position.identity):
                _require_media(state, position)
                misses.append(position)
            elif isinstance(raw, MediaRef):
                raw.refund()
        return misses

    def _entries_with_cache(
        self, state: MultiModalApplyState
    ) -> tuple[dict[tuple[str, int], ProcessorCacheEntry], dict[str, list[bool]]]:
        cache, fingerprint = state.inputs.cache, self.info.fingerprint
        assert cache is not None
        entries: dict[str, ProcessorCacheEntry] = {}
        with state.timing.record("look up"):
            # Found entries are held from here on, so that the request's own misses may evict
            # them from the cache but not from the request.
            for position in _positions(state):
                entry = cache.get(fingerprint, position.identity)
                if entry is not None:
                    entries[position.identity] = entry
        misses = [place for place in _one_of_each(state) if place.identity not in entries]
        for position in misses:
            _require_media(state, position)
        state.submit((place.modality, place.index) for place in misses)
        state.wait_decodes()
        for position, entry in self._process(state, misses):
            entries[position.identity] = entry
            cache.put(fingerprint, position.identity, entry)
        missed = {(place.modality, place.index) for place in misses}
        hits: dict[str, list[bool]] = {modality: [] for modality in state.items}
        by_place = {}
        for position in _positions(state):
            place = (position.modality, position.index)
            hits[position.modality].append(place not in missed)
            by_place[place] = entries[position.identity]
        return by_place, hits

    def _entries_without_cache(
        self, state: MultiModalApplyState
    ) -> tuple[dict[tuple[str, int], ProcessorCacheEntry], dict[str, list[bool]]]:
        positions = list(_positions(state))
        entries = {
            (position.modality, position.index): entry
            for position, entry in self._process(state, positions)
        }
        with state.timing.record("hash"):
            state.hashes = state.inputs.get_mm_hashes(
                self.info.model_id, self.info.mm_hasher_algorithm
            )
        return entries, {name: [False] * len(items) for name, items in state.items.items()}

    def _process(
        self, state: MultiModalApplyState, positions: Sequence[_Position]
    ) -> Iterator[tuple[_Position, ProcessorCacheEntry]]:
        """Yield the processed items in their order, on several workers where the family allows.

        An item that fails raises after what went well has been yielded, so that it is kept.
        """
        if len(positions) < 2 or not self.processes_in_parallel:
            for position in positions:
                with state.timing.record("process"):
                    entry = self._process_item(state, position)
                yield position, entry
            return
        pool, jobs = media_pool(), []
        failure: BaseException | None = None
        with state.timing.record("process"):
            try:
                for position in positions:
                    # One by one: what was submitted before a failure must be waited for.
                    jobs.append(pool.submit(self._process_item, state, position))  # noqa: PERF401
            finally:
                errors = [job.exception() for job in jobs]
        for position, job, error in zip(positions, jobs, errors, strict=True):
            if error is None:
                yield position, job.result()
            else:
                failure = failure or error
        if failure is not None:
            raise failure

    def _process_item(
        self, state: MultiModalApplyState, position: _Position
    ) -> ProcessorCacheEntry:
        """Process one item alone, so that what a cache keeps does not depend on its siblings."""
        modality = position.modality
        selected = state.items[modality].select([position.index])
        kwargs = self._scoped_kwargs(state.inputs, modality)
        try:
            hf_inputs = {
                **self._call_hf_processor(selected.get_processor_data(), kwargs),
                **selected.get_passthrough_data(),
            }
            config = self._get_mm_fields_config(hf_inputs, kwargs)
            items = MultiModalKwargsItems.from_hf_inputs(hf_inputs, config)
            (item,) = items[modality]
            updates = self._get_prompt_updates(
                MultiModalDataItems({modality: selected}), kwargs, items
            )
        except MediaError as error:
            raise error.at(modality, selected.get_original_index(0)) from error
        except (SafelightError, MemoryError):
            # Memory is the server's to have: running out of it is no fault of the item.
            raise
        except Exception as error:
            raise MediaError("the model's processor cannot process it").at(
                modality, selected.get_original_index(0)
            ) from error
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

    def _get_targets(self) -> dict[str, list[Sequence[int]]]:
        """What stands for an item in a prompt, by modality."""
        targets: dict[str, list[Sequence[int]]] = {}
        for update in self._get_prompt_updates(MultiModalDataItems(), {}, MultiModalKwargsItems()):
            targets.setdefault(update.modality, []).append(update.target)
        return targets

    def _merge(
        self,
        state: MultiModalApplyState,
        entries: Mapping[tuple[str, int], ProcessorCacheEntry],
        hits: dict[str, list[bool]],
    ) -> MultiModalInputs:
        assert state.hashes is not None
        updates: dict[str, list[Any]] = {}
        kwargs = MultiModalKwargsItems()
        for modality, items in state.items.items():
            of_modality = [entries[modality, index] for index in range(items.get_count())]
            kwargs[modality] = [entry.item for entry in of_modality]
            updates[modality] = [update for entry in of_modality for update in entry.prompt_updates]
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


def _validate_request(inputs: ProcessorInputs) -> None:
    """Refuse options that are no options, and UUIDs that are not one an item."""
    for options in (inputs.hf_processor_mm_kwargs, inputs.media_io_kwargs):
        if not isinstance(options, Mapping):
            raise RequestError("processor and decode options must be objects")
    for modality, uuids in (inputs.mm_uuid_items or {}).items():
        count = inputs.mm_data_items.get_count(modality, strict=False)
        if len(uuids) != count:
            raise RequestError(f"there are {len(uuids)} uuids for {count} {modality} items")
        given: Sequence[object] = uuids
        for index, uuid in enumerate(given):
            if uuid is not None and not (isinstance(uuid, str) and uuid and is_text(uuid)):
                raise RequestError(f"the uuid of {modality} {index} must be a string, not empty")


def _can_use_cache(inputs: ProcessorInputs) -> bool:
    """Whether the cache may serve the request: there is one, and no item skips the processor."""
    return inputs.cache is not None and not any(
        items.get_passthrough_data() for items in inputs.mm_data_items.values()
    )


def _positions(state: MultiModalApplyState) -> Iterator[_Position]:
    """Every item in the order of the request."""
    for modality, items in state.items.items():
        for index in range(items.get_count()):
            mm_hash = None if state.hashes is None else state.hashes[modality][index]
            yield _Position(modality, index, mm_hash)


def _one_of_each(state: MultiModalApplyState) -> list[_Position]:
    """One item of each identity, in the order of the request: the first that has media, if any."""
    chosen: dict[str, _Position] = {}
    for position in _positions(state):
        known = chosen.get(position.identity)
        if known is None or (_raw(state, known) is None and _raw(state, position) is not None):
            chosen[position.identity] = position
    return [position for position in _positions(state) if chosen[position.identity] == position]


def _raw(state: MultiModalApplyState, position: _Position) -> object:
    return state.items[position.modality].get_raw(position.index)


def _require_media(state: MultiModalApplyState, position: _Position) -> None:
    """Refuse an item that came as a UUID alone and that no cache holds."""
    if _raw(state, position) is None:
        raise RequestError(
            f"{position.modality} {position.index} has a uuid but no media, and no cache holds it"
        )


def _read_only(value: Any) -> Any:
    """Mark a numpy array as read-only: it is shared between requests. Tensors have no such mark."""
    if hasattr(value, "setflags"):
        value.setflags(write=False)
    return value
