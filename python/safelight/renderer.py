"""`Renderer`: chat requests in, processed inputs out, on asyncio or without it.

Owns the order of a request: fetch, prepare, phase 1, the wait, phase 2, and which thread runs
what. The phases of all requests run on one worker, so that caches see one order; waiting and
fetching do not occupy it. Must never block the event loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

from safelight._safelight import is_worker
from safelight.background import run_in_background
from safelight.budget import DecodedBudget, DownloadBudget
from safelight.cache.processor import MultiModalProcessorOnlyCache, ProcessorCacheEntry
from safelight.chat import ChatRequest, MediaPart, parse_chat
from safelight.chat_template import ChatTemplate, ContentFormat
from safelight.connector import MEDIA_CONNECTOR_REGISTRY
from safelight.errors import (
    ConfigurationError,
    FetchError,
    MediaError,
    RequestError,
    SafelightError,
)
from safelight.inputs import ItemPlace
from safelight.openmp import limit_nested_threads
from safelight.processing import BaseMultiModalProcessor, TimingContext
from safelight.processing.request import MultiModalInputs, ProcessorInputs
from safelight.ref import MediaRef

__all__ = ["RenderedChat", "RenderedItem", "Renderer"]

T = TypeVar("T")

_DEFAULT_MAX_DECODED_BYTES = 715_827_880
_DEFAULT_MAX_DOWNLOAD_BYTES = 256 << 20


@dataclass(frozen=True)
class RenderedItem:
    """What is known of one item of a processed chat. Pins neither its payload nor its pixels.

    Attributes:
        modality: Its modality.
        index: Its number among the items of the modality in the chat, from 0.
        uuid: What the client calls it, or None.
        mm_hash: What it is told apart by, as in the inputs.
        key: The key of its ref; None where it was not fetched, because a cache holds its UUID.
        nbytes: Bytes of its payload; None as for `key`.
        header: The `ImageHeader` of its payload; None where nothing tells it.
    """

    modality: str
    index: int
    uuid: str | None
    mm_hash: str
    key: bytes | None
    nbytes: int | None
    header: Any

    @property
    def upright_size(self) -> tuple[int, int] | None:
        """Width and height in pixels as they are shown; None where no header tells them."""
        return None if self.header is None else self.header.upright_size


@dataclass(frozen=True)
class RenderedChat:
    """A processed chat.

    Attributes:
        inputs: What a model runner takes.
        items: The chat's items, in order.
        timing: Seconds by stage.
    """

    # Not in the repr, which asyncio makes of a task's result when it restores a signal handler.
    inputs: MultiModalInputs = field(repr=False)
    items: list[RenderedItem]
    timing: TimingContext


class _Request(NamedTuple):
    """What one request brings besides its messages."""

    media_io_kwargs: Mapping[str, Mapping[str, Any]]
    mm_processor_kwargs: Mapping[str, Any]
    skip_mm_cache: bool
    template_kwargs: Mapping[str, Any]


class Renderer:
    """Renders chats for one model.

    Args:
        processor: The model's processor.
        cache: Processor cache shared by all requests; None processes everything.
        media_connector: Name in `MEDIA_CONNECTOR_REGISTRY` of the connector made for each request.
        connector_options: Its arguments.
        enable_prefix_caching: Whether the engine compares items by their hashes even without a
            processor cache. Without both, identities are made per request.
        max_decoded_bytes: What the media of one request may decode to.
        max_download_bytes: Encoded bytes that one request may bring.
        chat_template_content_format: Form of a message's content, as in `ChatTemplate`.

    Raises:
        ConfigurationError: No connector can be made as the options say, the form of content is
            malformed, or a number of bytes is negative.
    """

    def __init__(
        self,
        processor: BaseMultiModalProcessor,
        *,
        cache: MultiModalProcessorOnlyCache | None = None,
        media_connector: str = "http",
        connector_options: Mapping[str, Any] | None = None,
        enable_prefix_caching: bool = True,
        max_decoded_bytes: int = _DEFAULT_MAX_DECODED_BYTES,
        max_download_bytes: int = _DEFAULT_MAX_DOWNLOAD_BYTES,
        chat_template_content_format: ContentFormat = "auto",
    ) -> None:
        self.processor = processor
        self.cache = cache
        self.media_connector = media_connector
        self.connector_options = dict(connector_options or {})
        self.enable_prefix_caching = enable_prefix_caching
        self.max_decoded_bytes = max_decoded_bytes
        self.max_download_bytes = max_download_bytes
        self._template = ChatTemplate(processor.info, chat_template_content_format)
        self._check_options()
        self._worker = ThreadPoolExecutor(1, "safelight-processor")
        # Number of modules that were loaded when the worker last limited their threads.
        self._limited_modules = 0

    def close(self) -> None:
        """Stop the worker; what it has been given finishes. Renders under way fail."""
        self._worker.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def render_chat(
        self,
        messages: object,
        *,
        media_io_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        skip_mm_cache: bool = False,
        **template_options: Any,
    ) -> RenderedChat:
        """Render one chat, on a thread that has no event loop.

        Args:
            messages: Messages in the shape of OpenAI's API.
            media_io_kwargs: The request's decode options by modality.
            mm_processor_kwargs: The request's processor options.
            skip_mm_cache: Whether the request neither reads nor fills the cache.
            template_options: Options of the chat template: ``tools`` and what else
                `ChatTemplate.check_options` takes.

        Raises:
            RequestError: The chat is malformed.
            FetchError: Media cannot be had.
            MediaError: Media cannot be decoded or processed. It and `FetchError` name modality
                and index.
            RuntimeError: This thread runs an event loop, which would be held up.
        """
        if _is_on_loop():
            raise RuntimeError("render_chat would hold up the event loop: await render_chat_async")
        # The media of a render needs workers, so one of them cannot wait for another thread's loop.
        run = asyncio.run if is_worker() else run_in_background
        return run(
            self.render_chat_async(
                messages,
                media_io_kwargs=media_io_kwargs,
                mm_processor_kwargs=mm_processor_kwargs,
                skip_mm_cache=skip_mm_cache,
                **template_options,
            )
        )

    async def render_chat_async(
        self,
        messages: object,
        *,
        media_io_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        skip_mm_cache: bool = False,
        **template_options: Any,
    ) -> RenderedChat:
        """Render one chat as `render_chat` does; many may run at once on one loop.

        Cancellation waits for decodes that have started, then propagates.
        """
        request = _Request(
            media_io_kwargs or {},
            mm_processor_kwargs or {},
            skip_mm_cache,
            self._template.check_options(template_options),
        )
        timing = TimingContext()
        chat = parse_chat(messages)
        # Before anything is fetched: a request must not buy downloads that it cannot use.
        self._validate(chat, request)
        media_ios = self._get_media_ios(chat.media, request)
        entries = self._find_named(chat.media, request)
        wanted = [part for part in chat.media if _place(part) not in entries]
        with timing.record("fetch"):
            refs = await self._fetch(wanted, media_ios)
        outputs = await self._process(chat, _Media(refs, entries), request, timing)
        items = [
            _describe(part, refs.get(_place(part)), outputs["mm_hashes"]) for part in chat.media
        ]
        return RenderedChat(outputs, items, timing)

    def _check_options(self) -> None:
        """Refuse at once what would fail every request."""
        for name in ("max_decoded_bytes", "max_download_bytes"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must not be negative")
        self._make_connector()

    def _make_connector(self) -> Any:
        try:
            return MEDIA_CONNECTOR_REGISTRY.load(
                self.media_connector,
                **self.connector_options,
                download_budget=DownloadBudget(self.max_download_bytes),
            )
        except Exception as error:
            # The text of an error that is not ours may hold anything.
            reason = f": {error}" if isinstance(error, SafelightError) else ""
            raise ConfigurationError(
                f"media_connector {self.media_connector!r} cannot be made of connector_options"
                f"{reason}"
            ) from error

    def _validate(self, chat: ChatRequest, request: _Request) -> None:
        """Refuse options that are no options, and more media than the model takes."""
        for name in ("media_io_kwargs", "mm_processor_kwargs"):
            if not isinstance(getattr(request, name), Mapping):
                raise RequestError(f"{name} must be an object")
        if request.mm_processor_kwargs and not self.processor.info.trust_request_kwargs:
            # A size or a merge factor decides how much memory and how many tokens an image takes.
            raise RequestError("mm_processor_kwargs are not accepted from requests")
        self.processor.info.validate_counts(Counter(part.modality for part in chat.media))

    def _get_media_ios(self, media: Sequence[MediaPart], request: _Request) -> dict[str, Any]:
        """Return one decoder a modality, which serves all its items.

        Modalities that only have options are asked for too, so that what may not be set is refused
        whether it matters or not.
        """
        decoded_budget = DecodedBudget(self.max_decoded_bytes)
        return {
            modality: self.processor.info.get_media_io(
                modality, request.media_io_kwargs.get(modality), decoded_budget=decoded_budget
            )
            for modality in {*(part.modality for part in media), *request.media_io_kwargs}
        }

    def _find_named(
        self, media: Sequence[MediaPart], request: _Request
    ) -> dict[ItemPlace, ProcessorCacheEntry]:
        """Return what the cache has for UUIDs: not fetched, not hashed, and held from here on."""
        cache = self._get_cache(request)
        # A family that does without the phases may do without the entries.
        if cache is None or not self.processor.supports_two_phase:
            return {}
        found = {
            _place(part): self.processor.find_cached(
                cache,
                part.modality,
                part.uuid,
                media_io_kwargs=request.media_io_kwargs,
                hf_processor_mm_kwargs=request.mm_processor_kwargs,
            )
            for part in media
            if part.uuid is not None
        }
        return {place: entry for place, entry in found.items() if entry is not None}

    def _get_cache(self, request: _Request) -> MultiModalProcessorOnlyCache | None:
        return None if request.skip_mm_cache else self.cache

    async def _fetch(
        self, media: Iterable[MediaPart], media_ios: Mapping[str, Any]
    ) -> dict[ItemPlace, MediaRef[Any]]:
        """Fetch all parts at once; raise the first failure in the order of the chat."""
        media = [part for part in media if part.url is not None]
        if not media:
            return {}
        connector = self._make_connector()
        results: dict[ItemPlace, Any] = {}

        async def fetch(modality: str) -> None:
            parts = [part for part in media if part.modality == modality]
            urls = [part.url for part in parts]
            fetched = await _load_many(connector, modality, urls, media_ios[modality])
            results.update(zip(map(_place, parts), fetched, strict=True))

        await asyncio.gather(*map(fetch, {part.modality for part in media}))
        for place in map(_place, media):
            result = results[place]
            if isinstance(result, (FetchError, MediaError)):
                raise result.at(*place) from result
            if isinstance(result, BaseException):
                raise result
        return results

    def _prepare(self, chat: ChatRequest, media: _Media, request: _Request) -> ProcessorInputs:
        """Make the processor's view of a request: parsed media, identities, cache, prompt."""
        cache = self._get_cache(request)
        mm_data: dict[str, list[Any]] = {}
        mm_uuids: dict[str, list[str | None]] = {}
        for part in chat.media:
            mm_data.setdefault(part.modality, []).append(media.refs.get(_place(part)))
            mm_uuids.setdefault(part.modality, []).append(part.uuid)
        # Where nobody compares identities across requests, nobody may confuse two items.
        is_compared = cache is not None or self.enable_prefix_caching
        return ProcessorInputs(
            prompt=self._template.render(chat.messages, request.template_kwargs),
            mm_data_items=self.processor.data_parser.parse_mm_data(mm_data),
            mm_uuid_items=mm_uuids,
            media_io_kwargs=request.media_io_kwargs,
            hf_processor_mm_kwargs=request.mm_processor_kwargs,
            cache=cache,
            mm_entries=media.entries,
            request_id=None if is_compared else uuid.uuid4().hex,
        )

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        return self._worker.submit(self._run, work)

    def _run(self, work: Callable[[], T]) -> T:
        """Run `work` on the worker, where libraries may start few threads of their own.

        The limit is the worker's alone: the host's threads keep theirs. It reaches what is loaded,
        so it is set again whenever a module was imported.
        """
        if len(sys.modules) != self._limited_modules:
            self._limited_modules = len(sys.modules)
            # OpenMP's variable may be a list, with one number a level of nesting.
            threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
            limit_nested_threads(int(threads) if threads.isdecimal() and int(threads) else 1)
        return work()

    async def _process(
        self,
        chat: ChatRequest,
        media: _Media,
        request: _Request,
        timing: TimingContext,
    ) -> MultiModalInputs:
        if not self.processor.supports_two_phase:
            whole = self._submit(
                lambda: self.processor.apply(self._prepare(chat, media, request), timing)
            )
            await _finish(whole)
            return whole.result()
        phase1 = self._submit(
            lambda: self.processor.apply_phase1(self._prepare(chat, media, request), timing)
        )
        try:
            await _finish(phase1)
            # Off the worker: other requests' phases run while this one's media decodes.
            await phase1.result().wait_decodes_async()
            phase2 = self._submit(lambda: self.processor.apply_phase2(phase1.result()))
            await _finish(phase2)
            return phase2.result()
        finally:
            if not phase1.cancelled() and phase1.exception() is None:
                await phase1.result().close_async()


class _Media(NamedTuple):
    """The media of a request: what was fetched, and what a cache held so that it was not."""

    refs: Mapping[ItemPlace, MediaRef[Any]]
    entries: Mapping[ItemPlace, ProcessorCacheEntry]


def _place(part: MediaPart) -> ItemPlace:
    return ItemPlace(part.modality, part.index)


def _describe(
    part: MediaPart, ref: MediaRef[Any] | None, mm_hashes: Mapping[str, Sequence[str]]
) -> RenderedItem:
    payload = (None, None, None) if ref is None else (ref.key, len(ref.data), ref.header)
    mm_hash = mm_hashes[part.modality][part.index]
    return RenderedItem(part.modality, part.index, part.uuid, mm_hash, *payload)


async def _load_many(
    connector: Any, modality: str, urls: Sequence[Any], media_io: Any
) -> Sequence[Any]:
    """Return a ref for each URL, or why there is none."""
    load_many = getattr(connector, "load_many_async", None)
    if load_many is not None:
        results: Sequence[Any] = await load_many(modality, urls, media_io)
        return results
    # A connector of somebody else's, which has what vLLM's has.
    fetch = getattr(connector, f"fetch_{modality}_async")
    return await asyncio.gather(*(fetch(url, media_io) for url in urls), return_exceptions=True)


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _finish(work: Future[Any]) -> None:
    """Wait until `work` is done, whatever happens; its outcome is the caller's to take.

    A cancellation withdraws work that has not started. Otherwise it propagates once the work is
    done, however often it comes: what a worker has started is never abandoned.
    """
    waiter = asyncio.wrap_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not waiter.done():
        try:
            await asyncio.wait([waiter])
        except asyncio.CancelledError as error:
            cancellation = error
            work.cancel()
    if not waiter.cancelled():
        waiter.exception()
    if cancellation is not None:
        raise cancellation
