"""`MediaConnector`: one URL to bytes to refs, under the rules of one request.

Owns the choice of transport by scheme and what runs off the event loop. Must never decode media,
nor let a foreign exception pass for one of ours.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from safelight.background import run_in_background
from safelight.budget import Charge, DecodedBudget, DownloadBudget
from safelight.connector.batch import Batch, batch_of, in_batch
from safelight.connector.data_url import scheme_of, split_data_url
from safelight.connector.disk_cache import get_disk_cache
from safelight.connector.download import FetchPolicy
from safelight.connector.file_url import FileRoot
from safelight.connector.http_fetch import HTTPFetch
from safelight.connector.http_url import AllowedDomains, get_allowed_domains, parse_http_url
from safelight.connector.refs import load_data_refs, load_refs, raise_or_return, result_of
from safelight.connector.registry import MEDIA_CONNECTOR_REGISTRY
from safelight.errors import BlockedURLError, ConfigurationError, FetchError, RequestError
from safelight.pool import media_pool
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from safelight.connector.http import Fetcher
    from safelight.connector.network import Network
    from safelight.media.base import MediaIO

__all__ = ["MediaConnector"]

T = TypeVar("T")

_DEFAULT_MAX_BYTES = 256 << 20
_DEFAULT_TIMEOUT_S = 30.0
_MAX_GOOD_OPTIONS = 64
_good_options: set[str] = set()
_TIMEOUTS_S = {"image": 5.0, "video": 30.0, "audio": 10.0}


@MEDIA_CONNECTOR_REGISTRY.register("http")
class MediaConnector:
    """Brings the bytes of ``data:``, ``http(s):`` and ``file:`` URLs to a decoder.

    Cheap: one is made per request. Connections are shared by all connectors of an event loop, and
    by all callers that block. A plug-in overrides `load_from_url` and `load_from_url_async`, which
    everything else here calls, for every URL, or a ``fetch_*`` method of one modality.

    >>> pixel = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
    >>> ref = MediaConnector().fetch_image(f"data:image/gif;base64,{pixel}")
    >>> ref
    <MediaRef undecoded, 42 bytes>
    >>> ref.decode().size
    (1, 1)

    Args:
        allowed_media_domains: Hosts that http(s) URLs may name, on every hop; none means any.
        allowed_local_media_path: The folder whose files ``file:`` URLs may read; ``""`` means
            none.
        allow_private_addresses: Also reach loopback and private ranges. Link-local (cloud
            metadata), multicast, unspecified and reserved addresses stay shut.
        media_io_kwargs: Options by modality, for decoders that the connector makes itself.
        timeout_s: Seconds for one http(s) fetch in all: queue, hops, retries and body. None is 5
            for images, 10 for audio, and 30 otherwise.
        max_bytes: Largest payload, in bytes. A decoder's own maximum counts too, if it is less.
        max_redirects: Most redirects that one fetch follows.
        retries: How often a transient failure is tried again.
        retry_backoff_s: Longest wait before the first retry; it doubles from there.
        decoded_budget: What the decoders that the connector makes charge.
        download_budget: What the request may bring in all, by any scheme.
        cache_dir: Folder in which payloads of http(s) URLs are kept, shared by processes; None
            keeps none.
        cache_max_bytes: Size of that folder; the least recently used go first.
        cache_ttl_s: Seconds for which a kept payload is served unasked. After that the server is
            asked whether it is still good, if it gave an ETag.
        network: Look-ups and connections; None is the operating system's.
        ignored: Keywords of other connectors, so that one configuration serves several.

    Raises:
        ConfigurationError: An option is malformed, or names a folder that is not there.
    """

    def __init__(
        self,
        *,
        allowed_media_domains: Iterable[str] | None = None,
        allowed_local_media_path: str | os.PathLike[str] = "",
        allow_private_addresses: bool = False,
        media_io_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
        timeout_s: float | None = None,
        max_bytes: int = _DEFAULT_MAX_BYTES,
        max_redirects: int = 5,
        retries: int = 3,
        retry_backoff_s: float = 0.1,
        decoded_budget: DecodedBudget | None = None,
        download_budget: DownloadBudget | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_max_bytes: int = 1 << 30,
        cache_ttl_s: float = 3600.0,
        network: Network | None = None,
        **ignored: Any,
    ) -> None:
        del ignored
        for name, value in (("max_bytes", max_bytes), ("max_redirects", max_redirects)):
            _check_number(name, value, kind=int)
        _check_number("retries", retries, kind=int)
        _check_number("retry_backoff_s", retry_backoff_s)
        if timeout_s is not None:
            _check_number("timeout_s", timeout_s, is_positive=True)
        self._policy = FetchPolicy(
            _checked_domains(allowed_media_domains),
            max_redirects,
            retries,
            retry_backoff_s,
            allow_private_addresses,
            get_disk_cache(os.fspath(cache_dir), max_bytes=cache_max_bytes, ttl_s=cache_ttl_s)
            if cache_dir
            else None,
        )
        self._files = FileRoot(allowed_local_media_path) if allowed_local_media_path else None
        self._decoded_budget = decoded_budget
        self._media_io_kwargs = _checked_media_io_kwargs(media_io_kwargs)
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._download_budget = download_budget or DownloadBudget(sys.maxsize)
        self._network = network

    # --- one modality ---

    def fetch_image(self, url: str, media_io: MediaIO[Any] | None = None) -> MediaRef[Any]:
        """Return a ref to the image at `url`; None decodes it with ``ImageMediaIO()``.

        Raises:
            FetchError: It, or a subclass: the bytes could not be had, or must not be.
            MediaError: The decoder refuses them.
        """
        return self._fetch("image", url, media_io)

    async def fetch_image_async(
        self, url: str, media_io: MediaIO[Any] | None = None
    ) -> MediaRef[Any]:
        """As `fetch_image`, with nothing of size on the event loop."""
        return await self._fetch_async("image", url, media_io)

    def fetch_video(self, url: str, media_io: MediaIO[T]) -> MediaRef[T]:
        """As `fetch_image`, for a video."""
        return self._fetch("video", url, media_io)

    async def fetch_video_async(self, url: str, media_io: MediaIO[T]) -> MediaRef[T]:
        """As `fetch_video`, with nothing of size on the event loop."""
        return await self._fetch_async("video", url, media_io)

    def fetch_audio(self, url: str, media_io: MediaIO[T]) -> MediaRef[T]:
        """As `fetch_image`, for audio."""
        return self._fetch("audio", url, media_io)

    async def fetch_audio_async(self, url: str, media_io: MediaIO[T]) -> MediaRef[T]:
        """As `fetch_audio`, with nothing of size on the event loop."""
        return await self._fetch_async("audio", url, media_io)

    async def load_many_async(
        self, modality: str, urls: Sequence[str], media_io: MediaIO[Any] | None = None
    ) -> list[MediaRef[Any] | Exception]:
        """Return a ref for each URL, by the ``fetch_*_async`` method of `modality`.

        What it would raise for a URL stands in the place of a ref. All are fetched at once. Equal
        http(s) and file URLs are one fetch and one charge. Equal ``data:`` URLs, each of which is
        charged, are one decode. Their keys are equal, and each has media of its own.

        Raises:
            RequestError: `modality` is not ``"image"``, ``"video"`` or ``"audio"``.
        """
        media_io = self._make_media_io(modality) if media_io is None else media_io
        fetch = {
            "image": self.fetch_image_async,
            "video": self.fetch_video_async,
            "audio": self.fetch_audio_async,
        }[_checked_modality(modality)]
        return await self._load_batch_async(urls, media_io, partial(fetch, media_io=media_io))

    async def fetch_images_async(
        self, urls: Sequence[str], media_io: MediaIO[Any] | None = None
    ) -> list[MediaRef[Any] | Exception]:
        """As `load_many_async` for images."""
        return await self.load_many_async("image", urls, media_io)

    def _fetch(self, modality: str, url: str, media_io: MediaIO[Any] | None) -> MediaRef[Any]:
        media_io = self._make_media_io(modality) if media_io is None else media_io
        return self.load_from_url(url, media_io, fetch_timeout=_TIMEOUTS_S[modality])

    async def _fetch_async(
        self, modality: str, url: str, media_io: MediaIO[Any] | None
    ) -> MediaRef[Any]:
        media_io = self._make_media_io(modality) if media_io is None else media_io
        return await self.load_from_url_async(url, media_io, fetch_timeout=_TIMEOUTS_S[modality])

    def _make_media_io(self, modality: str) -> MediaIO[Any]:
        if _checked_modality(modality) != "image":
            raise RequestError(f"a decoder for {modality} has to be handed in")
        options = {"decoded_budget": self._decoded_budget, **self._media_io_kwargs.get("image", {})}
        return _make_image_io(options)

    # --- any modality ---

    def load_from_url(
        self,
        url: str,
        media_io: MediaIO[T],
        *,
        timeout_s: float | None = None,
        fetch_timeout: float | None = None,
    ) -> MediaRef[T]:
        """Return a ref to what is at `url`.

        The hook of plug-ins, which are called with `fetch_timeout`, vLLM's name of `timeout_s`.
        Either stands in where the connector was given no timeout.

        Raises:
            FetchError: It, or a subclass: the bytes could not be had, or must not be.
            MediaError: The decoder refuses them.
        """
        load = partial(self._load, [media_io], url, timeout_s or fetch_timeout)
        batch = batch_of(self, url, media_io, None)
        return load()[0] if batch is None else batch.load(url, lambda: load()[0])

    async def load_from_url_async(
        self,
        url: str,
        media_io: MediaIO[T],
        *,
        timeout_s: float | None = None,
        fetch_timeout: float | None = None,
    ) -> MediaRef[T]:
        """As `load_from_url`, with nothing of size on the event loop."""

        async def load() -> MediaRef[T]:
            return (await self._load_async([media_io], url, timeout_s or fetch_timeout))[0]

        batch = batch_of(self, url, media_io, asyncio.get_running_loop())
        return await (load() if batch is None else batch.load_async(url, load))

    def load_refs_from_url(
        self, url: str, media_ios: Sequence[MediaIO[Any]], *, timeout_s: float | None = None
    ) -> list[MediaRef[Any]]:
        """Return one ref per decoder, over one read of `url`; the payload is shared.

        The strictest maximum of the decoders holds, and any of them may refuse.

        Raises:
            FetchError: As `load_from_url`.
            MediaError: As `load_from_url`.
        """
        return self._load(media_ios, url, timeout_s)

    async def load_refs_from_url_async(
        self, url: str, media_ios: Sequence[MediaIO[Any]], *, timeout_s: float | None = None
    ) -> list[MediaRef[Any]]:
        """As `load_refs_from_url`, with nothing of size on the event loop."""
        return await self._load_async(media_ios, url, timeout_s)

    def load_from_urls(
        self, urls: Sequence[str], media_io: MediaIO[T], *, timeout_s: float | None = None
    ) -> list[MediaRef[T] | Exception]:
        """As `load_many_async`, by `load_from_url` and one after the other."""
        with in_batch(self._make_batch(urls, media_io, None)) as batch:
            load = partial(self.load_from_url, media_io=media_io, fetch_timeout=timeout_s)
            results = [result_of(load, url) for url in urls]
        batch.settle()
        return results

    async def load_from_urls_async(
        self, urls: Sequence[str], media_io: MediaIO[T], *, timeout_s: float | None = None
    ) -> list[MediaRef[T] | Exception]:
        """As `load_many_async`, by `load_from_url_async`."""
        load = partial(self.load_from_url_async, media_io=media_io, fetch_timeout=timeout_s)
        return await self._load_batch_async(urls, media_io, load)

    async def _load_batch_async(
        self,
        urls: Sequence[str],
        media_io: MediaIO[T],
        load: Callable[[str], Awaitable[MediaRef[T]]],
    ) -> list[MediaRef[T] | Exception]:
        with in_batch(self._make_batch(urls, media_io, asyncio.get_running_loop())) as batch:
            loads = [asyncio.ensure_future(load(url)) for url in urls]
        try:
            results = await asyncio.gather(*loads, return_exceptions=True)
        finally:
            await batch.close()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
        return cast(list[MediaRef[T] | Exception], results)

    def _make_batch(
        self,
        urls: Sequence[str],
        media_io: MediaIO[Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> Batch:
        return Batch(
            self,
            urls,
            media_io,
            load_data=partial(self._load_data, [media_io]),
            refund=lambda url: self._download_budget.refund(split_data_url(url).nbytes),
            loop=loop,
        )

    # --- transports ---

    def _load(
        self, media_ios: Sequence[MediaIO[Any]], url: str, timeout_s: float | None
    ) -> list[MediaRef[Any]]:
        if scheme_of(url) not in ("http", "https"):
            return self._load_local(media_ios, url)
        fetch = self._make_fetch(media_ios, url)
        stored = fetch.look_up()
        # What takes time but does not wait runs on the caller's thread: if that is one of the
        # media pool, the background loop must not need another.
        downloaded = run_in_background(self._download(fetch, timeout_s)) if stored is None else None
        return fetch.load(media_ios, stored, downloaded)

    async def _load_async(
        self, media_ios: Sequence[MediaIO[Any]], url: str, timeout_s: float | None
    ) -> list[MediaRef[Any]]:
        run_async = media_pool().run_async
        if scheme_of(url) not in ("http", "https"):
            return await run_async(self._load_local, media_ios, url)
        if not _http.cache_info().currsize:
            # The client and the certificates take a fifth of a second.
            await run_async(_http)
        await (await self._get_fetcher()).pace.keep()
        fetch = self._make_fetch(media_ios, url)
        stored = await run_async(fetch.look_up) if self._policy.cache is not None else None
        downloaded = await self._download(fetch, timeout_s) if stored is None else None
        return await run_async(fetch.load, media_ios, stored, downloaded)

    async def _download(self, fetch: HTTPFetch, timeout_s: float | None) -> bytes | None:
        timeout_s = self._timeout_s or timeout_s or _DEFAULT_TIMEOUT_S
        return await (await self._get_fetcher()).fetch(fetch, timeout_s, self)

    async def _get_fetcher(self) -> Fetcher:
        http = _http()
        network = self._network or http.SYSTEM_NETWORK
        fetcher: Fetcher = await http.get_fetcher(network, self._policy.allow_private)
        return fetcher

    def _make_fetch(self, media_ios: Sequence[MediaIO[Any]], url: str) -> HTTPFetch:
        _http()
        return HTTPFetch(
            parse_http_url(url),
            self._policy,
            max_bytes=self._get_max_bytes(media_ios),
            budget=self._download_budget,
            check_prefixes=[media_io.check_prefix for media_io in media_ios],
        )

    def _load_local(self, media_ios: Sequence[MediaIO[Any]], url: str) -> list[MediaRef[Any]]:
        scheme = scheme_of(url)
        if scheme == "data":
            return raise_or_return(self._load_data(media_ios, [url])[0])
        if scheme != "file":
            raise BlockedURLError("URL must have the scheme data, http, https or file")
        if self._files is None:
            raise BlockedURLError(
                "file: URLs are not allowed: there is no allowed_local_media_path"
            )
        with Charge(self._download_budget) as charge:
            return load_refs(
                media_ios, self._files.read(url, self._get_max_bytes(media_ios), charge)
            )

    def _load_data(
        self, media_ios: Sequence[MediaIO[Any]], urls: Sequence[str]
    ) -> list[list[MediaRef[Any]] | Exception]:
        max_bytes = self._get_max_bytes(media_ios)
        return load_data_refs(media_ios, urls, max_bytes, self._download_budget)

    # --- options ---

    def _get_max_bytes(self, media_ios: Iterable[MediaIO[Any]]) -> int:
        limits = (media_io.get_max_bytes() for media_io in media_ios)
        return min([self._max_bytes, *(limit for limit in limits if limit is not None)])


def _checked_domains(domains: Any) -> AllowedDomains:
    if isinstance(domains, (str, bytes)) or not isinstance(domains or (), Iterable):
        raise ConfigurationError("allowed_media_domains must be a list of hosts, not one text")
    hosts = tuple(domains or ())
    if not all(isinstance(host, str) for host in hosts):
        raise ConfigurationError("allowed_media_domains has an entry that is not a host")
    return get_allowed_domains(hosts)


def _check_number(name: str, value: Any, *, kind: type = float, is_positive: bool = False) -> None:
    is_number = isinstance(value, (kind, int)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and (value > 0 if is_positive else value >= 0)):
        what = "positive" if is_positive else "a number that is not negative"
        raise ConfigurationError(f"{name} must be {what}")


def _checked_media_io_kwargs(
    media_io_kwargs: Mapping[str, Mapping[str, Any]] | None,
) -> dict[str, dict[str, Any]]:
    """Return the options by modality, if decoders can be made of them."""
    try:
        options = {name: dict(each) for name, each in dict(media_io_kwargs or {}).items()}
    except (TypeError, ValueError):
        raise ConfigurationError("media_io_kwargs must map modalities to options") from None
    for modality in options:
        if modality not in _TIMEOUTS_S:
            raise ConfigurationError("media_io_kwargs has an unknown modality")
    image_options = options.get("image")
    # A connector is made per request, mostly of the same options: the verdict is kept.
    if image_options and (text := repr(image_options)) not in _good_options:
        _make_image_io(image_options)
        if len(_good_options) >= _MAX_GOOD_OPTIONS:
            _good_options.clear()
        _good_options.add(text)
    return options


def _make_image_io(options: Mapping[str, Any]) -> MediaIO[Any]:
    from safelight.media.image import ImageMediaIO

    try:
        return ImageMediaIO(**options)
    except (TypeError, ValueError):
        raise ConfigurationError("media_io_kwargs has an image option that is not valid") from None


def _checked_modality(modality: str) -> str:
    if modality not in _TIMEOUTS_S:
        raise RequestError("modality must be image, video or audio")
    return modality


@cache
def _http() -> ModuleType:
    """The module of the HTTP client, with all that its first use would load."""
    try:
        http = import_module("safelight.connector.http")
    except ImportError as error:
        raise FetchError(
            "http: and https: URLs need the http extra: pip install safelight[http]"
        ) from error
    http.warm_up()
    return http
