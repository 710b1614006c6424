"""`MediaConnector`: one URL to bytes to refs, under the rules of one request.

Owns the choice of road by scheme and what runs off the event loop. Must never decode media, nor
let anything but a `SafelightError` out.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from safelight._safelight import decode_base64
from safelight.budget import DecodedBudget, DownloadBudget
from safelight.connector.data_url import check_size, split_data_url
from safelight.connector.data_urls import load_data_urls
from safelight.connector.deadline import Deadline
from safelight.connector.disk_cache import get_disk_cache
from safelight.connector.file_url import FileRoot
from safelight.connector.off_loop import off_loop
from safelight.connector.outcome import only_ours, our, outcome_of
from safelight.connector.registry import MEDIA_CONNECTOR_REGISTRY
from safelight.errors import (
    BlockedURLError,
    FetchError,
    RequestError,
)
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from safelight.connector.http_fetch import HTTPFetch
    from safelight.connector.network import Network
    from safelight.media.base import MediaIO

__all__ = ["MediaConnector"]

T = TypeVar("T")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}):", re.ASCII)
_DEFAULT_MAX_BYTES = 256 << 20
_DEFAULT_TIMEOUT_S = 30.0
_IMAGE_TIMEOUT_S = 5.0


@MEDIA_CONNECTOR_REGISTRY.register("http")
class MediaConnector:
    """Brings the bytes of ``data:``, ``http(s):`` and ``file:`` URLs to a decoder.

    Cheap: one is made per request. Connections are shared by all connectors of an event loop.

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
            for images and 30 otherwise.
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
        RequestError: An option is malformed.
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
            if value < 0:
                raise RequestError(f"{name} must not be negative")
        if retries < 0 or retry_backoff_s < 0:
            raise RequestError("retries and retry_backoff_s must not be negative")
        if timeout_s is not None and timeout_s <= 0:
            raise RequestError("timeout_s must be positive")
        if isinstance(allowed_media_domains, str):
            raise RequestError("allowed_media_domains must be a list of hosts, not one text")
        self._allowed_media_domains = tuple(allowed_media_domains or ())
        if self._allowed_media_domains:
            # A malformed list fails here; without the client there is nothing to allow.
            with suppress(FetchError):
                _http_url().get_allowed_domains(self._allowed_media_domains)
        self._files = FileRoot(allowed_local_media_path) if allowed_local_media_path else None
        self._allow_private_addresses = allow_private_addresses
        self._media_io_kwargs = dict(media_io_kwargs or {})
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects
        self._retries = retries
        self._retry_backoff_s = retry_backoff_s
        self._decoded_budget = decoded_budget
        self._download_budget = download_budget
        self._disk_cache = (
            get_disk_cache(os.fspath(cache_dir), cache_max_bytes, cache_ttl_s)
            if cache_dir
            else None
        )
        self._network = network

    # --- images ---

    def fetch_image(self, url: str, media_io: MediaIO[Any] | None = None) -> MediaRef[Any]:
        """Return a ref to the image at `url`; None decodes it with ``ImageMediaIO()``.

        Raises:
            FetchError: It, or a subclass: the bytes could not be had, or must not be.
            MediaError: The decoder refuses them.
        """
        return self._load([media_io or self._make_image_io()], url, _IMAGE_TIMEOUT_S)[0]

    async def fetch_image_async(
        self, url: str, media_io: MediaIO[Any] | None = None
    ) -> MediaRef[Any]:
        """As `fetch_image`, with nothing of size on the event loop."""
        media_ios = [media_io or self._make_image_io()]
        return (await self._load_async(media_ios, url, _IMAGE_TIMEOUT_S))[0]

    def _make_image_io(self) -> MediaIO[Any]:
        from safelight.media.image import ImageMediaIO

        options = {"decoded_budget": self._decoded_budget, **self._media_io_kwargs.get("image", {})}
        try:
            return ImageMediaIO(**options)
        except (TypeError, ValueError):
            raise RequestError("media_io_kwargs has an image option that is not valid") from None

    # --- any modality ---

    def load_from_url(
        self, url: str, media_io: MediaIO[T], *, timeout_s: float | None = None
    ) -> MediaRef[T]:
        """Return a ref to what is at `url`.

        `timeout_s` stands in where the connector was given none.

        Raises:
            FetchError: It, or a subclass: the bytes could not be had, or must not be.
            MediaError: The decoder refuses them.
        """
        return self._load([media_io], url, timeout_s)[0]

    async def load_from_url_async(
        self, url: str, media_io: MediaIO[T], *, timeout_s: float | None = None
    ) -> MediaRef[T]:
        """As `load_from_url`, with nothing of size on the event loop."""
        return (await self._load_async([media_io], url, timeout_s))[0]

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

    # --- many at once ---

    def load_from_urls(
        self, urls: Sequence[str], media_io: MediaIO[T], *, timeout_s: float | None = None
    ) -> list[MediaRef[T] | Exception]:
        """Return a ref for each URL; what `load_from_url` would raise stands in the place of one.

        ``data:`` URLs are loaded together: equal ones are decoded and hashed once, and their refs
        share the payload and the decode. What each of them brings is charged.
        """
        load = partial(self.load_from_url, media_io=media_io, timeout_s=timeout_s)
        together = self._get_data_urls(urls, media_io, "load_from_url")
        outcomes = self._load_data_urls(together, media_io)
        return [
            outcomes[index] if index in outcomes else outcome_of(load, url)
            for index, url in enumerate(urls)
        ]

    async def load_from_urls_async(
        self, urls: Sequence[str], media_io: MediaIO[T], *, timeout_s: float | None = None
    ) -> list[MediaRef[T] | Exception]:
        """As `load_from_urls`; other URLs are fetched at the same time."""
        load = partial(self.load_from_url_async, media_io=media_io, timeout_s=timeout_s)
        return await self._load_many_async(urls, media_io, load, "load_from_url_async")

    async def fetch_images_async(
        self, urls: Sequence[str], media_io: MediaIO[Any] | None = None
    ) -> list[MediaRef[Any] | Exception]:
        """As `load_from_urls_async`; what is no ``data:`` URL goes to `fetch_image_async`."""
        media_io = media_io or self._make_image_io()
        load = partial(self.fetch_image_async, media_io=media_io)
        return await self._load_many_async(urls, media_io, load, "fetch_image_async")

    async def _load_many_async(
        self,
        urls: Sequence[str],
        media_io: MediaIO[T],
        load: Callable[[str], Awaitable[MediaRef[T]]],
        road: str,
    ) -> list[MediaRef[T] | Exception]:
        together = self._get_data_urls(urls, media_io, road)
        loads: dict[int, Awaitable[MediaRef[T]]] = {
            index: load(url) for index, url in enumerate(urls) if index not in together
        }
        data_urls = self._load_data_urls_async(together, media_io)
        gathered: list[Any] = await asyncio.gather(
            data_urls, *loads.values(), return_exceptions=True
        )
        outcomes, *fetched = gathered
        for outcome in gathered:
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome
        if isinstance(outcomes, Exception):
            raise outcomes
        outcomes.update(zip(loads, fetched, strict=True))
        return [outcomes[index] for index in range(len(urls))]

    def _get_data_urls(
        self, urls: Sequence[str], media_io: MediaIO[Any], road: str
    ) -> dict[int, str]:
        """Return the ``data:`` URLs that are loaded together, by their index.

        None where something has its own way with each: the decoder with base64, or a subclass
        with a URL, in the method `road`.
        """
        has_own_road = getattr(type(self), road) is not getattr(MediaConnector, road)
        if has_own_road or _reads_base64_itself(media_io):
            return {}
        return {index: url for index, url in enumerate(urls) if _has_scheme(url, "data")}

    def _load_data_urls(
        self, urls: Mapping[int, str], media_io: MediaIO[T]
    ) -> dict[int, MediaRef[T] | Exception]:
        outcomes = load_data_urls(
            urls.items(),
            media_io,
            max_bytes=self._get_max_bytes([media_io]),
            budget=self._download_budget,
        )
        return {index: our(outcome) for index, outcome in outcomes.items()}

    async def _load_data_urls_async(
        self, urls: Mapping[int, str], media_io: MediaIO[T]
    ) -> dict[int, MediaRef[T] | Exception]:
        # Without any there is no need to leave the loop.
        return await off_loop(partial(self._load_data_urls, urls, media_io)) if urls else {}

    # --- roads ---

    def _load(
        self, media_ios: Sequence[MediaIO[Any]], url: str, timeout_s: float | None
    ) -> list[MediaRef[Any]]:
        with only_ours():
            if _scheme(url) not in ("http", "https"):
                return self._load_local(media_ios, url)
            fetch = self._make_fetch(media_ios, url)
            payload = fetch.look_up()
            if payload is None:
                fetcher = _http().get_sync_fetcher(
                    self._get_network(), self._allow_private_addresses
                )
                deadline = Deadline(self._get_timeout_s(timeout_s))
                payload = fetch.settle(fetcher.fetch(fetch.download, deadline))
            return _load_fetched(media_ios, fetch, payload)

    async def _load_async(
        self, media_ios: Sequence[MediaIO[Any]], url: str, timeout_s: float | None
    ) -> list[MediaRef[Any]]:
        with only_ours():
            if _scheme(url) not in ("http", "https"):
                return await off_loop(partial(self._load_local, media_ios, url))
            if not _client.is_loaded:
                # The client and the certificates take a fifth of a second.
                await off_loop(partial(_client.load, self._get_network))
            fetcher = await _http().get_async_fetcher(
                self._get_network(), self._allow_private_addresses
            )
            await fetcher.begin()
            deadline = Deadline(self._get_timeout_s(timeout_s))
            fetch = self._make_fetch(media_ios, url)
            payload = await off_loop(fetch.look_up) if fetch.may_be_stored else None
            if payload is None:
                payload = fetch.settle(await fetcher.fetch(fetch.download, deadline, self))
            return await off_loop(partial(_load_fetched, media_ios, fetch, payload))

    def _load_local(self, media_ios: Sequence[MediaIO[Any]], url: str) -> list[MediaRef[Any]]:
        scheme = _scheme(url)
        if scheme == "data":
            return self._load_data(media_ios, url)
        if scheme != "file":
            raise BlockedURLError("URL must have the scheme data, http, https or file")
        if self._files is None:
            raise BlockedURLError(
                "file: URLs are not allowed: there is no allowed_local_media_path"
            )
        with (
            self._files.open(url, self._get_max_bytes(media_ios)) as file,
            self._charged(file.nbytes),
        ):
            payload = file.read()
            return [media_io.load_bytes_ref(payload) for media_io in media_ios]

    def _load_data(self, media_ios: Sequence[MediaIO[Any]], url: str) -> list[MediaRef[Any]]:
        media_type, start, nbytes = split_data_url(url)
        check_size(nbytes, self._get_max_bytes(media_ios))
        with self._charged(nbytes):
            # Once for all decoders, unless one reads the text in its own way.
            payload: bytes | None = None
            refs = []
            for media_io in media_ios:
                if _reads_base64_itself(media_io):
                    refs.append(media_io.load_base64_ref(media_type, url[start:]))
                    continue
                if payload is None:
                    payload = decode_base64(url, start)
                refs.append(media_io.load_bytes_ref(payload))
            return refs

    def _make_fetch(self, media_ios: Sequence[MediaIO[Any]], url: str) -> HTTPFetch:
        domains = _http_url().get_allowed_domains(self._allowed_media_domains)
        from safelight.connector.download import FetchPolicy
        from safelight.connector.http_fetch import HTTPFetch

        return HTTPFetch(
            url,
            FetchPolicy(domains, self._max_redirects, self._retries, self._retry_backoff_s),
            max_bytes=self._get_max_bytes(media_ios),
            budget=self._download_budget,
            check_prefixes=[media_io.check_prefix for media_io in media_ios],
            cache=self._disk_cache,
            allow_private=self._allow_private_addresses,
        )

    # --- options ---

    def _get_network(self) -> Network:
        if self._network is None:
            from safelight.connector.network import SYSTEM_NETWORK

            return SYSTEM_NETWORK
        return self._network

    def _get_timeout_s(self, default_s: float | None) -> float:
        if self._timeout_s is not None:
            return self._timeout_s
        return _DEFAULT_TIMEOUT_S if default_s is None else default_s

    def _get_max_bytes(self, media_ios: Iterable[MediaIO[Any]]) -> int:
        limits = (media_io.get_max_bytes() for media_io in media_ios)
        return min([self._max_bytes, *(limit for limit in limits if limit is not None)])

    @contextmanager
    def _charged(self, nbytes: int) -> Iterator[None]:
        """Charge `nbytes` to the request; give them back if what follows fails."""
        if self._download_budget is None:
            yield
            return
        self._download_budget.charge(nbytes)
        try:
            yield
        except BaseException:
            self._download_budget.refund(nbytes)
            raise


def _load_fetched(
    media_ios: Sequence[MediaIO[Any]], fetch: HTTPFetch, payload: bytes
) -> list[MediaRef[Any]]:
    try:
        refs = [media_io.load_bytes_ref(payload) for media_io in media_ios]
    except BaseException:
        fetch.download.abandon()
        raise
    fetch.store(payload)
    return refs


def _scheme(url: str) -> str:
    if not isinstance(url, str):
        raise BlockedURLError(f"URL must be str, not {type(url).__name__}")
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def _has_scheme(url: object, scheme: str) -> bool:
    return isinstance(url, str) and _scheme(url) == scheme


class _Client:
    """Whether everything that the first fetch on a loop needs has been imported."""

    is_loaded = False

    def load(self, get_network: Callable[[], Network]) -> None:
        _http().load_for_asyncio()
        get_network().ssl_context()
        self.is_loaded = True


_client = _Client()


def _http() -> ModuleType:
    return _of_http_extra("safelight.connector.http")


def _http_url() -> ModuleType:
    return _of_http_extra("safelight.connector.http_url")


def _of_http_extra(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise FetchError(
            "http: and https: URLs need the http extra: pip install safelight[http]"
        ) from error


def _reads_base64_itself(media_io: MediaIO[Any]) -> bool:
    from safelight.media.base import MediaIO

    return getattr(type(media_io), "load_base64_ref", None) is not MediaIO.load_base64_ref
