"""`MediaRef`: an encoded payload, its cache identity, and a decode that is deferred.

Owns the laws of deferral: decode once, derive keys without decoding, share a payload between
forks and maps, release it. Must never decode on its own account: nothing here but `decode` and
pickling runs the decoder. Forwards nothing to the media, so no attribute access can decode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast

from safelight._safelight import DecodeRequest, Deferred, Job, Pixels
from safelight.budget import Charge
from safelight.errors import ReleasedError
from safelight.key import derive_media_key
from safelight.spec import DecodeSpec

__all__ = ["MediaRef", "NativeDecoder", "SharedDecoder"]

T = TypeVar("T")
U = TypeVar("U")

_UNDECODED: Any = object()
_EMPTY_SPEC = DecodeSpec()


class NativeDecoder(Protocol):
    """A decoder whose work native code may do, without the interpreter but at the end.

    Any callable is a decoder; one that has these attributes too is asked for them.
    """

    @property
    def data(self) -> bytes:
        """The encoded payload that native code reads."""

    def __call__(self) -> Any:
        """Decode at once, on this thread."""

    def native_request(self) -> DecodeRequest | None:
        """Return what native code is to decode `data` to; None where the decoder is to be called.

        None is also the answer where the decode is to be refused: the call then raises.
        """

    def finish(self, pixels: Pixels | None) -> Any:
        """Return the media of what native code made; None is that it declined."""


class SharedDecoder(Protocol):
    """A decoder of which equal refs need one run between them, as long as that is under way.

    Any callable is a decoder; one that has these attributes too is asked for them.
    """

    @property
    def scope(self) -> object:
        """What, beside equal keys, two decoders must have in common; compared by identity.

        None shares with nobody.
        """

    def __call__(self) -> Any:
        """Decode at once, on this thread."""

    def adopt(self, media: Any) -> Any:
        """Return a copy of the media of an equal ref, or refuse it as a decode would."""


class MediaRef(Generic[T]):
    """One piece of media that has arrived and is not decoded until somebody asks.

    Args:
        decoder: Makes the media. It takes no argument, is called at most once successfully, and
            runs on whichever thread asks first. It may be a `NativeDecoder` or a `SharedDecoder`.
        data: The encoded payload. ``bytes`` are shared, other buffers are copied.
        spec: What the decode depends on; None is the empty spec.
        key: The identity, where it is known already; None derives it from `data` and `spec`,
            which is linear in the payload.
        header: What a probe of `data` said, for those who need a size before there are pixels.
        charge: What this ref holds of its request's decode budget.
    """

    __slots__ = (
        "__weakref__",
        "_charge",
        "_data",
        "_deferred",
        "_header",
        "_key",
        "_memo",
        "_spec",
    )

    def __init__(
        self,
        decoder: Callable[[], T],
        data: bytes,
        spec: DecodeSpec | None = None,
        *,
        key: bytes | None = None,
        header: object | None = None,
        charge: Charge | None = None,
    ) -> None:
        self._data = data if type(data) is bytes else bytes(memoryview(data))
        self._spec = _EMPTY_SPEC if spec is None else spec
        self._key = derive_media_key(self._data, self._spec) if key is None else key
        self._header = header
        self._charge = charge
        self._memo = _Memo()
        self._deferred: Deferred[T] | None = Deferred(decoder, self._memo, self._key)

    @property
    def key(self) -> bytes:
        """The cache identity: 32 bytes derived from the payload and the spec."""
        return self._key

    @property
    def spec(self) -> DecodeSpec:
        """What the decode depends on; part of `key`."""
        return self._spec

    @property
    def data(self) -> bytes:
        """The encoded payload; ``b""`` once released or unpickled."""
        return self._data

    @property
    def header(self) -> Any:
        """What a probe of the payload said, or None where it said nothing or no longer holds."""
        return self._header

    @property
    def is_decoded(self) -> bool:
        """Whether `decode` returns without work."""
        return self._memo.media is not _UNDECODED

    def decode(self) -> T:
        """Return the media, decoding it if nobody has.

        Concurrent callers, on this ref or its forks, share one run of the decoder. What the
        decoder raises propagates unchanged, to those who joined as a copy, and is not remembered:
        the next call tries again.

        Raises:
            ReleasedError: The ref was released before it was decoded.
            RuntimeError: The decoder asks for this very media, directly or through others.
        """
        # Before the memo: a release after a decode must not look like one before it.
        deferred = self._deferred
        media = self._memo.media
        if media is not _UNDECODED:
            return cast(T, media)
        if deferred is None:
            raise ReleasedError("the media was released before it was decoded")
        return deferred.decode()

    def decode_job(self) -> Job[T]:
        """Return a job, to be queued on a pool, whose result is that of `decode`.

        What native code decodes is decoded without the interpreter before `decode` is called. A
        job takes part in a decode that is under way. Cancelling it leaves the decode to others
        who want it; where nobody does, the decode is withdrawn, or stopped midway.
        """
        deferred = self._deferred
        return Job(self.decode) if deferred is None else deferred.job(self.decode)

    def map(self, transform: Callable[[T], U], /, **settings: Any) -> MediaRef[U]:
        """Return a ref that decodes to ``transform(self.decode())``.

        The payload is shared, not copied, and stays usable when this ref is released. With
        `settings` the spec is extended, a repeated name taking the new value, and the key is
        derived from this ref's key. Without them both are kept, so `transform` must then not
        change anything that a cache could notice. `transform` runs at most once successfully.

        Raises:
            SpecError: A setting is not JSON, or is not a finite number.
        """
        # The child owns a share of the decode, so that releasing the parent never breaks it.
        parent = self.fork()
        spec, key, header = self._spec, self._key, self._header
        if settings:
            spec = spec.extend(**settings)
            # From the parent's key, not its bytes: the payload is not hashed again, and mapping
            # a released ref works.
            key = derive_media_key(key, spec)
            header = None
        return MediaRef(
            lambda: transform(parent.decode()),
            self._data,
            spec,
            key=key,
            header=header,
            charge=self._charge,
        )

    def fork(self) -> MediaRef[T]:
        """Return a ref to the same media that is released on its own.

        Payload, spec, key and decode are shared: whichever fork decodes, all are decoded. It is of
        this ref's class; a subclass that adds attributes copies them in its own `fork`.
        """
        fork: MediaRef[T] = object.__new__(type(self))
        fork._charge = self._charge
        fork._data = self._data
        fork._deferred = self._deferred
        fork._header = self._header
        fork._key = self._key
        fork._memo = self._memo
        fork._spec = self._spec
        return fork

    def release(self) -> None:
        """Drop the payload and the decoder, which may hold the payload too.

        Decoded media stays readable; a decode in flight finishes and is readable as well. An
        undecoded ref cannot be decoded any more. Forks, maps and parents are not touched.
        """
        self._data = b""
        self._deferred = None

    def refund(self) -> None:
        """Give back what the ref holds of its request's decode budget: a cache serves it.

        Does nothing for decoded media. Decoding after all charges anew.
        """
        if self._charge is not None:
            self._charge.refund()

    def __repr__(self) -> str:
        state = "decoded" if self.is_decoded else "undecoded"
        return f"<MediaRef {state}, {len(self._data)} bytes>"

    def __copy__(self) -> MediaRef[T]:
        # Without it, copying would use `__reduce__`, which decodes.
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> MediaRef[T]:
        return self.fork()

    def __reduce__(self) -> tuple[Callable[..., MediaRef[T]], tuple[Any, ...]]:
        # A decoder does not cross a process boundary, so a ref travels as its media.
        return _restore, (self.decode(), self._key, self._spec)


def _restore(media: T, key: bytes, spec: DecodeSpec) -> MediaRef[T]:
    ref: MediaRef[T] = MediaRef(lambda: media, b"", spec, key=key)
    ref.decode()
    return ref


class _Memo:
    """Where the media will be. Knows no decoder, so a released ref that keeps it pins nothing."""

    __slots__ = ("media",)

    def __init__(self) -> None:
        self.media: Any = _UNDECODED
