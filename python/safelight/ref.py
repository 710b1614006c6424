"""`MediaRef`: an encoded payload, its cache identity, and a decode that is deferred.

Owns the laws of deferral: decode once, derive keys without decoding, share a payload between
forks and maps, release it. Must never decode on its own account: nothing here but `decode` and
pickling runs the decoder. Forwards nothing to the media, so no attribute access can decode.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from safelight._safelight import Claim, Job
from safelight.budget import DecodeCharge
from safelight.errors import ReleasedError
from safelight.key import derive_media_key
from safelight.spec import DecodeSpec

__all__ = ["MediaRef", "StagedDecoder"]

T = TypeVar("T")
U = TypeVar("U")

_UNDECODED: Any = object()
_EMPTY_SPEC = DecodeSpec()


class StagedDecoder:
    """A decoder that can also do its work as a job that needs the interpreter at its end only."""

    # No abstract base class: asking whether a decoder is one would cost as much as the rest.
    __slots__ = ()

    def __call__(self) -> Any:
        """Decode here and now."""
        raise NotImplementedError

    def begin(self, claim: Claim, finish: Callable[[Any, bool], Any]) -> Job[Any] | None:
        """Return a job that is not queued yet, or None where the decode has to run as a whole.

        Args:
            claim: The right to decode, which the job takes when it runs.
            finish: Called at the job's end, attached: with what it made, or None, and whether the
                claim was the job's.
        """
        raise NotImplementedError

    def finish(self, made: Any) -> Any:
        """Return the media of what a job made; None is that it has to be made in another way."""
        raise NotImplementedError


class MediaRef(Generic[T]):
    """One piece of media that has arrived and is not decoded until somebody asks.

    Args:
        decoder: Makes the media. It takes no argument, is called at most once successfully, and
            runs on whichever thread asks first.
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
        charge: DecodeCharge | None = None,
    ) -> None:
        self._data = data if type(data) is bytes else bytes(memoryview(data))
        self._spec = _EMPTY_SPEC if spec is None else spec
        self._key = derive_media_key(self._data, self._spec) if key is None else key
        self._header = header
        self._charge = charge
        self._memo: _Memo[T] = _Memo()
        self._deferred: _Deferred[T] | None = _Deferred(decoder, self._memo)

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
        decoder raises propagates unchanged and is not remembered: the next call tries again.

        Raises:
            ReleasedError: The ref was released before it was decoded.
        """
        # Before the memo: a release after a decode must not look like one before it.
        deferred = self._deferred
        media = self._memo.media
        if media is not _UNDECODED:
            return cast(T, media)
        if deferred is None:
            raise ReleasedError("the media was released before it was decoded")
        return deferred.run()

    def decode_job(self) -> Job[T] | None:
        """Return a job that decodes the media without the interpreter, to be queued on a pool.

        None where there is no such way: then `decode` is what is to be submitted. A job that
        comes to its turn while another, or a thread, decodes the same media gets what that one
        makes. Cancelling a job stops it, even midway; `decode` tries again.
        """
        deferred = self._deferred
        # A subclass that decodes in its own way is asked for it.
        if deferred is None or type(self).decode is not MediaRef.decode:
            return None
        return deferred.begin()

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

        Payload, spec, key and decode are shared: whichever fork decodes, all are decoded.
        """
        fork: MediaRef[T] = object.__new__(MediaRef)
        for name in MediaRef.__slots__[1:]:
            setattr(fork, name, getattr(self, name))
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
        # Without it, copying would go the way of pickling, which decodes.
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


class _Memo(Generic[T]):
    """Where the media will be. Knows no decoder, so a released ref that keeps it pins nothing."""

    __slots__ = ("media",)

    def __init__(self) -> None:
        self.media: Any = _UNDECODED


class _Deferred(Generic[T]):
    """A decode that has not succeeded yet, shared by the forks of a ref."""

    __slots__ = ("_claim", "_decoder", "_lock", "_memo", "_thread_id")

    def __init__(self, decoder: Callable[[], T], memo: _Memo[T]) -> None:
        self._decoder: Callable[[], T] | None = decoder
        # Of threads that call `run`; the claim is what they share with a job, which holds it
        # without the interpreter.
        self._claim = Claim()
        self._lock = threading.Lock()
        self._memo = memo
        self._thread_id: int | None = None

    def run(self) -> T:
        """Run the decoder once; later and concurrent callers get its result."""
        if self._thread_id == threading.get_ident():
            raise RuntimeError("the decoder of a media ref asked for its own media")
        # Known for as long as this thread may hold the lock, and a little longer on both sides,
        # so that no fork falls between.
        ticket = object()
        _running[ticket] = self
        try:
            with self._lock:
                while self._memo.media is _UNDECODED:
                    # A job that has begun has the claim; if it comes to nothing, it is free again.
                    self._claim.run(self._decode)
                return cast(T, self._memo.media)
        finally:
            _running.pop(ticket, None)

    def _decode(self, decode: Callable[[], T] | None = None) -> None:
        """Run `decode`, or the decoder, with the claim."""
        decode = decode or self._decoder
        assert decode is not None
        self._thread_id = threading.get_ident()
        try:
            self._memo.media = decode()
        finally:
            self._thread_id = None
        self._forget()

    def begin(self) -> Job[T] | None:
        """Return a job for the decode, unless the decoder makes none."""
        decoder = self._decoder
        if not isinstance(decoder, StagedDecoder):
            return None
        return decoder.begin(self._claim, self._finish)

    def _finish(self, made: Any, is_ours: bool) -> T:
        if not is_ours:
            return self.run()
        decoder = self._decoder
        assert isinstance(decoder, StagedDecoder)
        self._decode(partial(decoder.finish, made))
        return cast(T, self._memo.media)

    def _forget(self) -> None:
        # The decoder may hold the payload and a half-open file; the media is all that is left.
        self._decoder = None

    def _reset_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._thread_id = None


# Decodes that a thread of this process is inside of, or waits for. In the child of an os.fork()
# that thread is gone while its lock is still held, so the child starts these decodes anew.
_running: dict[object, _Deferred[Any]] = {}


def _after_fork_in_child() -> None:
    for deferred in _running.values():
        deferred._reset_after_fork()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
