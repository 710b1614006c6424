"""``file:`` URLs under one allowed root.

Owns which path a URL means, that it lies under the root, and that only regular files of a bounded
size are read. Must never wait on a file (FIFO, device), nor name a path in an error.
"""

from __future__ import annotations

import os
import re
import stat
from errno import EAGAIN, EINTR, EIO, EMFILE, ENFILE, ENOMEM, ETIMEDOUT
from urllib.parse import unquote_to_bytes

from safelight.budget import Charge
from safelight.errors import (
    BlockedURLError,
    ConfigurationError,
    FetchError,
    PayloadTooLargeError,
    TransientFetchError,
)

__all__ = ["FileRoot"]

_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Their files are views of the kernel, not files: reading one can wait, or tell of the process.
_KERNEL_ROOTS = (b"/proc", b"/sys", b"/dev")
_READ_BYTES = 1 << 20
# Of the machine, not of the URL: no descriptor or memory left, a disk or server that fails.
_TRANSIENT = (EAGAIN, EINTR, EIO, EMFILE, ENFILE, ENOMEM, ETIMEDOUT)


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

    def read(self, url: str, max_bytes: int, charge: Charge) -> bytes:
        """Return the content of the file that `url` means, held by `charge` before it is read.

        Raises:
            BlockedURLError: The URL is malformed, names a host, or leads outside the root or to
                what is not a regular file.
            PayloadTooLargeError: The file is over `max_bytes` or the budget.
            TransientFetchError: The machine cannot read it now, or it has changed meanwhile.
        """
        path = _path(url)
        root = self._root.rstrip(b"/") + b"/"
        try:
            resolved = os.path.realpath(path)
            if not resolved.startswith(root) or _is_kernel_view(resolved):
                raise BlockedURLError("file is outside allowed_local_media_path")
            descriptor = _open_beneath(self._root, resolved[len(root) :].split(b"/"))
        except OSError as error:
            raise _open_error(error) from None
        try:
            nbytes = _size(descriptor, max_bytes)
            charge.reserve(nbytes)
            return _read(descriptor, nbytes)
        finally:
            os.close(descriptor)


def _size(descriptor: int, max_bytes: int) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise BlockedURLError("file is not a regular file")
    if status.st_size > max_bytes:
        raise PayloadTooLargeError(
            f"file has {status.st_size} bytes, over max_bytes {max_bytes}",
            limit=max_bytes,
            actual=status.st_size,
        )
    return status.st_size


def _read(descriptor: int, nbytes: int) -> bytes:
    chunks = []
    # One byte more than the size, to see whether the file has grown.
    left = nbytes + 1
    try:
        while left > 0 and (chunk := os.read(descriptor, min(left, _READ_BYTES))):
            chunks.append(chunk)
            left -= len(chunk)
    except OSError:
        raise TransientFetchError("file cannot be read") from None
    if left != 1:
        raise TransientFetchError("file changed while it was read")
    return b"".join(chunks)


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
