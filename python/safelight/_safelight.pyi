"""The compiled part of safelight, held to the binary by stubtest. One section a noun."""

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Generic, ParamSpec, Self, TypeVar, final

from safelight.errors import MediaError
from safelight.pool import MediaPool

_P = ParamSpec("_P")
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

__version__: str

# --- spec ---

class CanonicalSpec:
    """Holds the canonical JSON bytes of a `DecodeSpec`, which is its only subclass."""

    def __new__(cls, canonical: bytes) -> Self: ...
    def canonical_bytes(self) -> bytes:
        """The canonical JSON bytes, as they enter a key."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

# --- features ---

def features() -> dict[str, Any]:
    """What is inside of this build, for reports of faults and for gates on versions known as bad.

    Returns:
        A new dict: ``"safelight"`` and each native library with its version, which the library
        itself tells, or None where the build has none; and ``"simd"``, the vector instructions
        that native code chooses at run time, with whether this machine has them.
    """

# --- key ---

def derive_media_key(data: bytes | bytearray | memoryview, spec: CanonicalSpec) -> bytes:
    """The cache identity of `data` decoded under `spec`: 32 bytes."""

def derive_media_keys(
    payloads: Sequence[bytes | bytearray | memoryview], spec: CanonicalSpec
) -> list[bytes]:
    """The keys of `payloads` under one `spec`, in order."""

# --- base64 ---

def decode_base64(data: str | bytes | bytearray, start: int = 0) -> bytes:
    """Decode strict base64 (RFC 4648 section 4: padded, no whitespace) from `data[start:]`.

    Neither the rest of `data` nor the text is copied; `start` counts characters, so the payload
    of a data URL is decoded where it stands. Positions in errors count from `start`.
    """

# --- probe ---

@final
class ImageHeader:
    """What a header says of an image: frozen, picklable, hashable, equal by its fields.

    Attributes:
        format: By the bytes alone, as Pillow names it: ``"JPEG"``, ``"PNG"``, ``"WEBP"``, …
        mime_type: The media type of the format; ``"image/jpeg"`` for MPO too.
        width: Stored width in pixels, before any orientation: Pillow's ``size[0]``.
        height: Stored height in pixels.
        mode: Mode of the first frame, as Pillow names it; None where only a decoder can tell.
        bits: Bits per sample as stored, or None.
        has_alpha: Whether there is an alpha channel or a transparent color, or None.
        is_animated: Whether there is more than one frame or page, or None.
        frame_count: Frames or pages; None where the header does not say, as in GIF.
        orientation: 1 to 8, as EXIF counts; 1 where none is stated.
        upright_size: Width and height once the orientation is applied. A TIFF's is in `width`
            and `height` already, and is not applied again.
        image_id: EXIF ImageID, or None.
        image_unique_id: EXIF ImageUniqueID, or None. It is not unique in the wild.
    """

    def __new__(
        cls,
        *,
        format: str,
        width: int,
        height: int,
        mode: str | None = None,
        bits: int | None = None,
        has_alpha: bool | None = None,
        is_animated: bool | None = None,
        frame_count: int | None = None,
        orientation: int = 1,
        upright_size: tuple[int, int] | None = None,
        image_id: str | None = None,
        image_unique_id: str | None = None,
    ) -> Self: ...
    @property
    def format(self) -> str: ...
    @property
    def mime_type(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def mode(self) -> str | None: ...
    @property
    def bits(self) -> int | None: ...
    @property
    def has_alpha(self) -> bool | None: ...
    @property
    def is_animated(self) -> bool | None: ...
    @property
    def frame_count(self) -> int | None: ...
    @property
    def orientation(self) -> int: ...
    @property
    def upright_size(self) -> tuple[int, int]: ...
    @property
    def image_id(self) -> str | None: ...
    @property
    def image_unique_id(self) -> str | None: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...

@final
class NeedMoreBytes:
    """More of the payload is needed to answer: frozen, picklable, hashable, equal by its fields.

    Attributes:
        at_least: No prefix of fewer bytes can be answered; None where that is not known.
        format: The format, once it is known.
        size: Width and height as declared so far, or None. Enough to refuse an oversize image
            before its header is complete.
    """

    def __new__(
        cls,
        at_least: int | None = None,
        *,
        format: str | None = None,
        size: tuple[int, int] | None = None,
    ) -> Self: ...
    @property
    def at_least(self) -> int | None: ...
    @property
    def format(self) -> str | None: ...
    @property
    def size(self) -> tuple[int, int] | None: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...

def probe(data: bytes | bytearray | memoryview) -> ImageHeader:
    """Return the header of the image in `data`, a whole payload, without decoding it.

    Takes about a microsecond, and a few milliseconds at most whatever the bytes are.

    Raises:
        HeaderError: No header that can be read: not an image, cut short, or damaged; its `size`
            is the one that was declared before the damage.
        UnsupportedMediaError: A format that is recognized but not served; the message names it.
    """

def probe_prefix(data: bytes | bytearray | memoryview) -> ImageHeader | NeedMoreBytes:
    """Return the header of the image that begins with `data`, or `NeedMoreBytes`.

    A header is that of the whole payload, but for what a PNG states behind its pixels: `probe`
    finds its orientation and ids there.

    Raises:
        HeaderError: As `probe`, as soon as no further bytes can help.
        UnsupportedMediaError: As `probe`.
    """

def probe_files(
    paths: Sequence[str | PathLike[str]],
) -> list[ImageHeader | MediaError | OSError]:
    """Return the headers of the files at `paths`, in order, of each reading no more than it takes.

    In the place of a header that cannot be had stands the exception: what `probe` raises, or an
    OSError. Only regular files are opened. The interpreter is released meanwhile.
    """

# --- pool ---

@final
class Job(Generic[_T_co]):
    """One callable on its way through a pool."""

    def __new__(cls, function: Callable[[], _T_co]) -> Self: ...
    def result(self, timeout: float | None = None) -> _T_co:
        """Wait for the job and return what it returned, or raise a copy of what it raised."""
    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the job; the very exception that it raised, or None."""
    def cancel(self) -> bool:
        """Withdraw the job if it has not begun; whether it is withdrawn.

        A decode goes on for others who want it. One that runs and that nobody else wants is asked
        to stop, and then ends as if it had been withdrawn.
        """
    def cancelled(self) -> bool:
        """Whether the job was withdrawn before it began, or stopped midway."""
    def running(self) -> bool:
        """Whether the job runs at this moment."""
    def done(self) -> bool:
        """Whether the job ended, however."""
    def __class_getitem__(cls, _item: Any) -> type[Self]: ...

class Pool:
    """Threads that run Python callables and native jobs."""

    def __new__(
        cls,
        max_threads: int,
        *,
        max_queue: int = 1024,
        name: str = "safelight-media",
        niceness: int = 0,
    ) -> Self: ...
    @property
    def max_threads(self) -> int:
        """Most threads."""
    @property
    def max_queue(self) -> int:
        """Jobs that may wait."""
    def submit(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Job[_T]:
        """Queue ``function(*args, **kwargs)``; its job. With a full queue the caller waits."""
    def submit_batch(
        self, callables: Iterable[Callable[[], _T] | Job[_T]], *, background: bool = False
    ) -> list[Job[_T]]:
        """Queue callables without arguments, or jobs that are not queued yet, in one call; the jobs,
        in order.
        """
    def offer(self, jobs: Sequence[Job[Any]]) -> int:
        """Queue from the front of `jobs`, which are not queued yet, as many as there is room for; how
        many. Never waits, nor runs one here.
        """
    def notify_room(
        self, event_loop: AbstractEventLoop, mailbox: Mailbox, future: Future[None]
    ) -> None:
        """Have `future` resolved on its loop once there is room, or the pool takes no more jobs."""
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs; withdraw the queued ones if asked, wait for the others if asked."""
    def _stats(self) -> dict[str, int]: ...

@final
class Mailbox:
    """Wakes asyncio waiters of one event loop, with one call into the loop however many there are."""

    def __new__(cls) -> Self: ...
    def drain(self) -> None:
        """Resolve the futures that were posted; runs on the loop's own thread."""

@final
class Watch(Generic[_T]):
    """Watches jobs and tells in which order they end; forgotten, it leaves them running."""

    def __new__(cls, jobs: Sequence[Job[_T]]) -> Self: ...
    def take(self) -> list[Job[_T]]:
        """The jobs that ended since the last call, in that order."""
    def wait(self, count: int) -> None:
        """Wait until `count` jobs, or all, have ended. A job that waits runs those that have not begun."""
    def notify(
        self, count: int, event_loop: AbstractEventLoop, mailbox: Mailbox, future: Future[None]
    ) -> None:
        """Have `future` resolved on its loop once `count` jobs, or all, have ended."""
    def leave(self) -> None:
        """Forget the jobs; they go on."""
    def __class_getitem__(cls, _item: Any) -> type[Self]: ...

def media_pool() -> MediaPool:
    """The pool of the process."""

def is_worker() -> bool:
    """Whether the current thread runs a job."""

def available_cores() -> int:
    """Cores that this process may use, by affinity and cgroup."""

# --- cache ---

class Cache:
    """Byte-bounded LRU with one flight per key."""

    def __new__(
        cls,
        max_bytes: int,
        *,
        max_in_flight_bytes: int | None = None,
        pool: Pool | None = None,
    ) -> Self: ...
    @property
    def nbytes(self) -> int:
        """Exact sum of the bytes of all entries."""
    @property
    def max_bytes(self) -> int:
        """The bound."""
    def get(self, key: bytes, default: Any = None, /) -> Any:
        """The value of `key`, which becomes the most recently used, or `default`."""
    def put(self, key: bytes, value: object, nbytes: int) -> bool:
        """Store `value`; whether it fitted."""
    def get_or_compute(
        self,
        key: bytes,
        compute: Callable[[], tuple[_T, int]],
        *,
        predicted_nbytes: int = 0,
        background: bool = False,
    ) -> _T:
        """The value of `key`; if there is none, what `compute` makes of it on the pool."""
    def touch(self, key: bytes) -> bool:
        """Make `key` the most recently used; false if it is not there. Not counted."""
    def pin(self, key: bytes) -> bool:
        """Keep `key` from eviction until it is unpinned as often; false if it is not there."""
    def unpin(self, key: bytes) -> bool:
        """Take back one pin; false if `key` is not there or not pinned."""
    def invalidate(self, key: bytes) -> bool:
        """Forget `key`; whether it was there."""
    def clear(self) -> None:
        """Forget everything."""
    def __len__(self) -> int: ...
    def __contains__(self, key: bytes, /) -> bool: ...
    def _hit(self, key: bytes, default: Any) -> Any:
        """The value of `key`, counted as a hit, or `default`, not counted."""
    def _begin(
        self,
        key: bytes,
        compute: Callable[[], tuple[Any, int]],
        predicted_nbytes: int,
        background: bool,
    ) -> tuple[Job[Any] | None, Any]:
        """As `get_or_compute`, but instead of waiting: no job and the value, or the job that makes it."""
    def _leave(self, job: Job[Any]) -> None:
        """A waiter was cancelled. The work goes on."""
    def _stats(self) -> dict[str, int]: ...

# --- pixels ---

@final
class Pixels:
    """The pixels of one image, in memory that this object owns.

    Exports a writable, C-contiguous buffer: height x width, and channels where there are more
    than one; uint8, except uint16 for ``I;16`` and ``I;16B``, int32 for ``I``, float32 for ``F``.
    """

    @property
    def width(self) -> int:
        """Columns."""
    @property
    def height(self) -> int:
        """Rows."""
    @property
    def size(self) -> tuple[int, int]:
        """Width and height, in Pillow's order."""
    @property
    def mode(self) -> str:
        """Pillow's name of the mode. Mode ``1`` has a byte a pixel here, 0 or 255."""
    @property
    def nbytes(self) -> int:
        """Bytes of the pixels."""
    @property
    def palette(self) -> bytes | None:
        """The palette of modes ``P`` and ``PA`` as packed RGB, None for other modes."""
    @property
    def transparency(self) -> int | tuple[int, int, int] | bytes | None:
        """Pillow's ``info["transparency"]``: an int, a tuple of three, bytes, or None."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[Any, Any]: ...

@final
class ImageProcessor:
    """An image processor with all of its settings, of one of transformers' backends."""

    def __new__(
        cls,
        geometry: Mapping[str, Any],
        filter: str,
        backend: str,
        rescale_factor: float | None,
        mean_and_std: tuple[tuple[float, ...], tuple[float, ...]] | None,
    ) -> Self: ...
    def layout(
        self, width: int, height: int
    ) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int] | None]:
        """Columns and rows of an image after its resize, those that are kept, and its grid of rows
        and columns of patches, if it is one.
        """

    def process(self, images: Sequence[tuple[Any, int, int]], form: str) -> Pixels:
        """Process RGB images, each with its width and height, into one buffer.

        `form` is ``"float"``, ``"uint8"``, or ``"single"`` for uint8 without copies of patches.
        """

    def expand(self, levels: Any, is_single: bool) -> Pixels:
        """The floats of uint8 outputs; those of a single form are repeated as its geometry says."""

def resize(
    levels: Any,
    shape: tuple[int, int, int],
    size: tuple[int, int],
    filter: str,
    backend: str,
    region: tuple[float, float, float, float] | None = None,
) -> Pixels:
    """Resize packed uint8 pixels of `shape` (rows, columns, channels) as Pillow or torch does."""

@final
class DecodeRequest:
    """What to decode an image to; frozen.

    `mode` is ``"RGB"``, ``"RGBX"``, ``"RGBA"``, ``"L"``, or None for the image's own; `background`
    what a transparent image is pasted over, None to convert without; `max_pixels` the most that are
    decoded, 0 for no limit; `orientation` that of Exif; a JPEG is decoded to 1/`scale` of its size.
    """

    def __new__(
        cls,
        mode: str | None = ...,
        background: tuple[int, int, int] | None = ...,
        max_pixels: int = ...,
        orientation: int = 1,
        scale: int = 1,
    ) -> Self: ...

def decode_image(data: bytes | bytearray, request: DecodeRequest) -> Pixels | None:
    """Decode an image as Pillow would, its first picture turned upright and in the request's mode.

    The interpreter is detached for the whole decode. None means that Pillow has to be asked: the
    format or this kind of it is not served, or the file is damaged.
    """

def check_jpeg_scans(data: bytes | bytearray) -> None:
    """Refuse a JPEG with more scans than are decoded, each of which may touch every pixel."""

# --- ref ---

@final
class Deferred(Generic[_T_co]):
    """A decode that has not succeeded yet, shared by the forks of a ref.

    The media is kept as the attribute ``media`` of `memo`, which knows nothing of the decoder. The
    decoder is dropped as soon as there is media.
    """

    def __new__(cls, decoder: Callable[[], _T_co], memo: object, key: bytes) -> Self: ...
    def decode(self) -> _T_co:
        """The media, decoded here unless somebody does so already."""
    def job(self, hook: Callable[[], _T_co]) -> Job[_T_co]:
        """A job that is not queued yet: it decodes, natively without the interpreter, and returns
        what `hook` does, the ref's `decode`, which finds the decode done.
        """
    def __class_getitem__(cls, _item: Any) -> type[Self]: ...
