"""``file:`` URLs under one allowed root.

Owns which path a URL means, that it lies under the root, and that only regular files of a bounded
size are read. Must never wait on a file (FIFO, device), nor name a path in an error.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote_to_bytes

from safelight.errors import (
    BlockedURLError,
    ConfigurationError,
    FetchError,
    PayloadTooLargeError,
    TransientFetchError,
)

__all__ = ["FileRoot", "OpenFile"]

_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Their files are views of the kernel, not files: reading one can wait, or tell of the process.
_KERNEL_ROOTS = (b"/proc", b"/sys", b"/dev")
_READ_BYTES = 1 << 20
# Of the machine, not of the URL: no descriptor or memory left, a disk or server that fails.
_TRANSIENT = frozenset(
    (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EIO,
        errno.EAGAIN,
        errno.EINTR,
        errno.ETIMEDOUT,
    )
)


class FileRoot:
    """The folder whose files may be read.

    The root is resolved once, so it may itself be a symlink; links inside it that stay inside
    are followed.

    Raises:
        ConfigurationError: `path` is not an existing folder.
    """

    __slots__ = ("_root",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            root = os.fsencode(os.path.realpath(path))
        except ValueError:  # a null character
            root = b""
        if not os.path.isdir(root):
            raise ConfigurationError("allowed_local_media_path is not an existing folder")
        self._root = root

    @contextmanager
    def open(self, url: str, max_bytes: int) -> Iterator[OpenFile]:
        """Open the file that `url` means, for the length of a ``with`` block.

        Raises:
            BlockedURLError: The URL is malformed, names a host, or leads outside the root or to
                what is not a regular file.
            PayloadTooLargeError: The file is over `max_bytes`.
            TransientFetchError: The machine cannot open it now.
        """
        path = _path(url)
        try:
            resolved = os.path.realpath(path)
        except OSError as error:  # exchanged while it was resolved
            raise _open_error(error) from None
        root = self._root.rstrip(b"/") + b"/"
        if not resolved.startswith(root) or _is_kernel_view(resolved):
            raise BlockedURLError("file is outside allowed_local_media_path")
        parts = resolved[len(root) :].split(b"/")
        try:
            descriptor = _open_beneath(self._root, parts)
        except OSError as error:
            raise _open_error(error) from None
        try:
            yield OpenFile(descriptor, max_bytes)
        finally:
            os.close(descriptor)


class OpenFile:
    """A regular file of a size that was checked.

    Attributes:
        nbytes: Its size.
    """

    __slots__ = ("_descriptor", "nbytes")

    def __init__(self, descriptor: int, max_bytes: int) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BlockedURLError("file is not a regular file")
        self.nbytes = status.st_size
        self._descriptor = descriptor
        if self.nbytes > max_bytes:
            raise PayloadTooLargeError(
                f"file has {self.nbytes} bytes, over max_bytes {max_bytes}",
                limit=max_bytes,
                actual=self.nbytes,
            )

    def read(self) -> bytes:
        """Return the whole content, once.

        Raises:
            TransientFetchError: The file cannot be read, or has changed meanwhile.
        """
        chunks = []
        # One byte more than the size, to see whether the file has grown.
        left = self.nbytes + 1
        try:
            while left > 0 and (chunk := os.read(self._descriptor, min(left, _READ_BYTES))):
                chunks.append(chunk)
                left -= len(chunk)
        except OSError:
            raise TransientFetchError("file cannot be read") from None
        if left != 1:
            raise TransientFetchError("file changed while it was read")
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _open_error(error: OSError) -> FetchError:
    if error.errno in _TRANSIENT:
        return TransientFetchError("file cannot be opened at the moment")
    if isinstance(error, FileNotFoundError):
        return BlockedURLError("file does not exist")
    # Also ELOOP and ENOTDIR: the path was exchanged for a link after it was resolved.
    return BlockedURLError("file cannot be opened")


def _path(url: str) -> bytes:
    """The absolute path that `url` means, decoded once."""
    rest = url[len("file:") :]
    if rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        if host:
            raise BlockedURLError("file URL must not name a host")
        rest = slash + rest
    if not rest.startswith("/"):
        raise BlockedURLError("file URL must have an absolute path")
    if "?" in rest or "#" in rest:
        raise BlockedURLError("file URL must not have a query or fragment ('?' is %3F, '#' is %23)")
    if _PERCENT.search(rest):
        raise BlockedURLError("file URL has a '%' that starts no escape")
    try:
        decoded = unquote_to_bytes(rest)
    except UnicodeEncodeError:
        raise BlockedURLError("file URL is not valid text") from None
    if b"\0" in decoded:
        raise BlockedURLError("file URL has a null character")
    return decoded


def _is_kernel_view(path: bytes) -> bool:
    return any(path == root or path.startswith(root + b"/") for root in _KERNEL_ROOTS)


def _open_beneath(root: bytes, parts: list[bytes]) -> int:
    """Open the file at `parts` below `root` without following any link.

    The path is resolved already, so a link met here was put there since.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    folder = os.open(root, flags | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            child = os.open(part, flags | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = child
        # Non-blocking, because opening a FIFO waits for its writer otherwise.
        return os.open(parts[-1], flags | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
    finally:
        os.close(folder)
