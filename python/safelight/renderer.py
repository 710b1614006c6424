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
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

from safelight._safelight import is_worker
from safelight.background import run_in_background
from safelight.budget import DecodedBudget, DownloadBudget
from safelight.cache.processor import MultiModalProcessorOnlyCache
from safelight.chat import ChatRequest, MediaPart, parse_chat
from safelight.chat_template import ChatTemplate, ContentFormat
from safelight.connector import MEDIA_CONNECTOR_REGISTRY
from safelight.errors import FetchError, MediaError, RequestError
from safelight.processing import BaseMultiModalProcessor, TimingContext
from safelight.processing.request import MultiModalInputs, ProcessorInputs
from safelight.ref import MediaRef

__all__ = ["RenderedChat", "Renderer"]

_DEFAULT_MAX_DECODED_BYTES = 715_827_880
_DEFAULT_MAX_DOWNLOAD_BYTES = 256 << 20


@dataclass(frozen=True)
class RenderedChat:
    """A processed chat.

    Attributes:
        inputs: What a model runner takes.
        media: The chat's media parts, in order.
        refs: The ref of each part; None where only a UUID was given.
        timing: Seconds by stage.
    """

    # Not in the repr, which asyncio makes of a task's result when it restores a signal handler.
    inputs: MultiModalInputs = field(repr=False)
    media: list[MediaPart]
    refs: list[MediaRef[Any] | None]
    timing: TimingContext


@dataclass(frozen=True)
class _Request:
    """What one request brings besides its messages."""

    media_io_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    skip_mm_cache: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


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
        self._worker = ThreadPoolExecutor(
            1, "safelight-processor", initializer=_limit_torch_threads
        )

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
            skip_mm_cache: Whether the request goes past the cache.
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

        Cancellation waits for decodes that have begun, then propagates.
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
        with timing.record("fetch"):
            refs = await self._fetch(chat.media, request)
        outputs = await self._process(chat, refs, request, timing)
        return RenderedChat(outputs, chat.media, refs, timing)

    def _validate(self, chat: ChatRequest, request: _Request) -> None:
        """Refuse options that are no options, and more media than the model takes."""
        for name in ("media_io_kwargs", "mm_processor_kwargs"):
            if not isinstance(getattr(request, name), Mapping):
                raise RequestError(f"{name} must be an object")
        if request.mm_processor_kwargs and not self.processor.info.trust_request_kwargs:
            # A size or a merge factor decides how much memory and how many tokens an image takes.
            raise RequestError("mm_processor_kwargs are not accepted from requests")
        self.processor.info.validate_counts(Counter(part.modality for part in chat.media))

    async def _fetch(
        self, media: Sequence[MediaPart], request: _Request
    ) -> list[MediaRef[Any] | None]:
        """Fetch all parts at once; raise the first failure in the order of the chat."""
        decoded_budget = DecodedBudget(self.max_decoded_bytes)
        # One decoder a modality serves all its items. Modalities that only have options are asked
        # for too, so that what may not be set is refused whether it matters or not.
        media_ios = {
            modality: self.processor.info.get_media_io(
                modality, request.media_io_kwargs.get(modality), decoded_budget=decoded_budget
            )
            for modality in {*(part.modality for part in media), *request.media_io_kwargs}
        }
        if not media:
            return []
        connector = MEDIA_CONNECTOR_REGISTRY.load(
            self.media_connector,
            **self.connector_options,
            download_budget=DownloadBudget(self.max_download_bytes),
        )

        results: list[Any] = [None] * len(media)

        async def fetch(modality: str) -> None:
            places = [
                place
                for place, part in enumerate(media)
                if part.modality == modality and part.url is not None
            ]
            urls = [media[place].url for place in places]
            fetched = await _fetch(connector, urls, media_ios[modality])
            for place, result in zip(places, fetched, strict=True):
                results[place] = result

        await asyncio.gather(*map(fetch, media_ios))
        refs: list[MediaRef[Any] | None] = []
        for part, result in zip(media, results, strict=True):
            if isinstance(result, (FetchError, MediaError)):
                raise result.at(part.modality, part.index) from result
            if isinstance(result, BaseException):
                raise result
            refs.append(result)
        return refs

    def _prepare(
        self, chat: ChatRequest, refs: Sequence[MediaRef[Any] | None], request: _Request
    ) -> ProcessorInputs:
        """Make the processor's view of a request: parsed media, identities, cache, prompt."""
        cache = None if request.skip_mm_cache else self.cache
        mm_data: dict[str, list[Any]] = {}
        mm_uuids: dict[str, list[str | None]] = {}
        for part, ref in zip(chat.media, refs, strict=True):
            mm_data.setdefault(part.modality, []).append(ref)
            mm_uuids.setdefault(part.modality, []).append(part.uuid)
        if cache is None and not self.enable_prefix_caching:
            # Nobody compares identities across requests, so nobody may confuse two items.
            request_id = uuid.uuid4().hex
            mm_uuids = {
                modality: [f"{request_id}-{modality}-{index}" for index in range(len(uuids))]
                for modality, uuids in mm_uuids.items()
            }
        return ProcessorInputs(
            prompt=self._template.render(chat.messages, request.template_kwargs),
            mm_data_items=self.processor.data_parser.parse_mm_data(mm_data),
            mm_uuid_items=mm_uuids,
            media_io_kwargs=request.media_io_kwargs,
            hf_processor_mm_kwargs=request.mm_processor_kwargs,
            cache=cache,
        )

    async def _process(
        self,
        chat: ChatRequest,
        refs: Sequence[MediaRef[Any] | None],
        request: _Request,
        timing: TimingContext,
    ) -> MultiModalInputs:
        if not self.processor.supports_two_phase:
            whole = self._worker.submit(
                lambda: self.processor.apply(self._prepare(chat, refs, request), timing)
            )
            await _finish(whole)
            return whole.result()
        phase1 = self._worker.submit(
            lambda: self.processor.apply_phase1(self._prepare(chat, refs, request), timing)
        )
        try:
            await _finish(phase1)
            # Off the worker: other requests' phases run while this one's media decodes.
            await phase1.result().wait_decodes_async()
            phase2 = self._worker.submit(self.processor.apply_phase2, phase1.result())
            await _finish(phase2)
            return phase2.result()
        finally:
            if not phase1.cancelled() and phase1.exception() is None:
                await phase1.result().close_async()


async def _fetch(connector: Any, urls: Sequence[Any], media_io: Any) -> list[Any]:
    """Return a ref for each URL, or why there is none."""
    fetch_images = getattr(connector, "fetch_images_async", None)
    if fetch_images is not None:
        return list(await fetch_images(urls, media_io))
    # A connector of somebody else's, which has what vLLM's has.
    fetches = (connector.fetch_image_async(url, media_io) for url in urls)
    return await asyncio.gather(*fetches, return_exceptions=True)


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _finish(work: Future[Any]) -> None:
    """Wait until `work` is done, whatever happens; its outcome is the caller's to take.

    A cancellation withdraws work that has not begun. Otherwise it propagates once the work is
    done, however often it comes: what a worker has begun is never abandoned.
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


def _limit_torch_threads() -> None:
    """Keep torch's kernels on the worker's own core, for the worker's life.

    Set once: setting and restoring a process-wide number per call would race.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        # OpenMP's variable may be a list, with one number a level of nesting.
        threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        torch.set_num_threads(int(threads) if threads.isdecimal() and int(threads) else 1)
