"""`DiskCache`: payloads of http(s) URLs kept on disk, shared by processes.

Owns the files: one per URL, named by the hash of the URL, written beside and renamed into place,
so a reader sees a whole entry or none. Least recently used entries go when the folder outgrows
its size. Must never raise for what the disk does (a cache that cannot be read or written is a
miss), nor decide whether a URL may be fetched: whoever asks has judged it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import threading
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from safelight.errors import ConfigurationError

__all__ = ["DiskCache", "Entry", "get_disk_cache"]

# Format: magic, 4 bytes of big-endian header length, header, payload. The magic is new when the
# format is, so that an entry of another version is a miss.
_MAGIC = b"safelight-payload-2\n"
_MAX_HEADER = 1 << 20
_SUFFIX = ".payload"
# A temporary file that has not been renamed by then belongs to a process that is gone.
_ABANDONED_S = 3600.0
# Entries are counted anew after this share of the maximum was written, because other processes
# write too.
_RECOUNT_SHARE = 16
# What reading an entry raises, whatever its bytes.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Entry(NamedTuple):
    """A stored payload."""

    payload: bytes
    hosts: tuple[str, ...]
    """Hosts of every hop that led to it, for the allow list of whoever asks."""
    etag: bytes | None
    stored_at: float
    """Seconds since the epoch of the fetch or of its last revalidation."""
    is_fresh: bool
    """Whether it may be used without asking the server again."""


class DiskCache:
    """Payloads by URL, at most `max_bytes` of them, fresh for `ttl_s`.

    Thread-safe, and safe for any number of processes on one folder. The folder must be the
    application's own: files that are not entries are left alone, but whoever can write there can
    choose what a URL brings.

    Args:
        path: The folder, made if it does not exist.
        max_bytes: Size of all entries together. An entry larger than it is not stored.
        ttl_s: Seconds for which an entry is served without asking the server. After that it is
            revalidated by its ETag, and dropped if it has none.

    Raises:
        ConfigurationError: The folder cannot be made or written.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int, ttl_s: float) -> None:
        if max_bytes <= 0 or ttl_s < 0:
            raise ConfigurationError("cache_max_bytes and cache_ttl_s must not be negative")
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._written_since_count = max_bytes
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # What permissions say is not what the mount allows.
            with tempfile.TemporaryFile(dir=self._path):
                pass
        except (OSError, ValueError):
            raise ConfigurationError("cache_dir cannot be made or written") from None

    def _file(self, url: str, *, allow_private: bool) -> Path:
        # What private addresses answered is not for those who may not reach them.
        scope = "private" if allow_private else "public"
        name = hashlib.sha256(f"{scope} {url}".encode()).hexdigest()
        return self._path / f"{name}{_SUFFIX}"

    def get(self, url: str, *, allow_private: bool, max_bytes: int) -> Entry | None:
        """Return what is stored for `url`, fresh or to be revalidated, or None.

        An entry over `max_bytes`, damaged, or stale without an ETag is None.
        """
        file = self._file(url, allow_private=allow_private)
        try:
            with file.open("rb") as stream:
                entry = self._read(stream.fileno(), max_bytes)
        except _UNREADABLE:
            return None
        if entry is not None and entry.is_fresh:
            # The time of use is the access time; the mount may not keep it by itself.
            with suppress(OSError):
                os.utime(file, (time.time(), file.stat().st_mtime))
        return entry

    def _read(self, descriptor: int, max_bytes: int) -> Entry | None:
        size = os.fstat(descriptor).st_size
        prefix = os.read(descriptor, len(_MAGIC) + 4)
        header_size = int.from_bytes(prefix[len(_MAGIC) :], "big")
        payload_size = size - len(prefix) - header_size
        if not prefix.startswith(_MAGIC) or header_size > _MAX_HEADER or payload_size < 0:
            return None
        if payload_size > max_bytes:
            return None
        header = json.loads(_read_exactly(descriptor, header_size))
        stored_at = float(header["stored_at"])
        etag = header["etag"]
        age_s = time.time() - stored_at
        # A clock that was set back makes an entry stale, not eternal.
        is_fresh = 0 <= age_s < min(self._ttl_s, float(header["max_age_s"]))
        if not is_fresh and etag is None:
            return None
        payload = _read_exactly(descriptor, payload_size)
        # The rename is atomic, but the content may not have reached the disk before a power cut.
        if hashlib.sha256(payload).hexdigest() != header["sha256"]:
            return None
        return Entry(
            payload,
            tuple(header["hosts"]),
            None if etag is None else etag.encode("latin-1"),
            stored_at,
            is_fresh,
        )

    def put(
        self,
        url: str,
        payload: bytes,
        *,
        allow_private: bool,
        hosts: tuple[str, ...],
        etag: bytes | None,
        max_age_s: float = math.inf,
    ) -> None:
        """Store `payload` for `url`, in place of what was there; nothing that is of no use.

        `max_age_s` is the server's word on how long it may be used without asking again.
        """
        if len(payload) > self._max_bytes or (max_age_s <= 0 and etag is None):
            return
        header = json.dumps(
            {
                "stored_at": time.time(),
                "max_age_s": max_age_s,
                "etag": None if etag is None else etag.decode("latin-1"),
                "hosts": hosts,
                "sha256": hashlib.sha256(payload).hexdigest(),
            }
        ).encode()
        file = self._file(url, allow_private=allow_private)
        with suppress(OSError):
            self._write(file, [_MAGIC, len(header).to_bytes(4, "big"), header, payload])
            self._make_room(len(payload), keep=file)

    def drop(self, url: str, *, allow_private: bool) -> None:
        """Forget what is stored for `url`."""
        with suppress(OSError):
            self._file(url, allow_private=allow_private).unlink()

    def _write(self, file: Path, parts: list[bytes]) -> None:
        descriptor, temporary = tempfile.mkstemp(dir=self._path, prefix=".", suffix=_SUFFIX)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.writelines(parts)
            Path(temporary).replace(file)
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink()
            raise

    def _make_room(self, written: int, *, keep: Path) -> None:
        """Drop the least recently used entries beyond the maximum, never `keep`."""
        margin = self._max_bytes // _RECOUNT_SHARE
        with self._lock:
            self._written_since_count += written
            if self._written_since_count < margin:
                return
            self._written_since_count = 0
        entries = self._scan()
        total = sum(size for _, size, _ in entries)
        for _, size, file in sorted(entries):
            if total <= self._max_bytes - margin:
                break
            if file != keep:
                with suppress(OSError):
                    file.unlink()
                total -= size

    def _scan(self) -> list[tuple[float, int, Path]]:
        """Return time of use, size and file of every entry; drop what crashed writers left."""
        entries = []
        for item in os.scandir(self._path):
            # Other processes drop entries too.
            with suppress(OSError):
                status = item.stat(follow_symlinks=False)
                if not item.name.endswith(_SUFFIX):
                    continue
                if not item.name.startswith("."):
                    entries.append((status.st_atime, status.st_size, Path(item.path)))
                elif time.time() - status.st_mtime > _ABANDONED_S:
                    Path(item.path).unlink()
        return entries


@lru_cache(maxsize=16)
def get_disk_cache(path: str, max_bytes: int, ttl_s: float) -> DiskCache:
    """Return the cache that all connectors of this process share.

    Raises:
        ConfigurationError: As `DiskCache`.
    """
    return DiskCache(path, max_bytes=max_bytes, ttl_s=ttl_s)


if hasattr(os, "register_at_fork"):
    # A lock may be held in the parent, by a thread that the child does not have.
    os.register_at_fork(after_in_child=get_disk_cache.cache_clear)


def _read_exactly(descriptor: int, size: int) -> bytes:
    chunks = []
    while size > 0:
        chunk = os.read(descriptor, min(size, 1 << 24))
        if not chunk:
            raise ValueError("entry is cut short")
        chunks.append(chunk)
        size -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
