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

# An entry is a line of JSON and the payload. The format is new when what is in the line is, so that
# an entry of another version is a miss.
_FORMAT = "safelight-payload-3"
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
                header = json.loads(stream.readline(_MAX_HEADER))
                size = os.fstat(stream.fileno()).st_size - stream.tell()
                # A clock that was set back makes an entry stale, not eternal.
                age_s = time.time() - float(header["stored_at"])
                is_fresh = 0 <= age_s < min(self._ttl_s, float(header["max_age_s"]))
                if header["format"] != _FORMAT or size > max_bytes:
                    return None
                if not is_fresh and header["etag"] is None:
                    return None
                payload = stream.read(size)
            # The rename is atomic, but the content may be lost in a power cut.
            if hashlib.sha256(payload).hexdigest() != header["sha256"]:
                return None
            etag = None if header["etag"] is None else header["etag"].encode("latin-1")
            entry = Entry(payload, tuple(header["hosts"]), etag, is_fresh)
        except _UNREADABLE:
            return None
        if is_fresh:
            # The time of use is the access time; the mount may not keep it by itself.
            with suppress(OSError):
                os.utime(file, (time.time(), file.stat().st_mtime))
        return entry

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
                "format": _FORMAT,
                "stored_at": time.time(),
                "max_age_s": max_age_s,
                "etag": None if etag is None else etag.decode("latin-1"),
                "hosts": hosts,
                "sha256": hashlib.sha256(payload).hexdigest(),
            }
        ).encode()
        file = self._file(url, allow_private=allow_private)
        with suppress(OSError):
            self._write(file, [header, b"\n", payload])
            self._make_room(len(payload), keep=file)

    def drop(self, url: str, *, allow_private: bool) -> None:
        """Forget what is stored for `url`."""
        with suppress(OSError):
            self._file(url, allow_private=allow_private).unlink()

    def _write(self, file: Path, parts: list[bytes]) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._path, prefix=".", suffix=_SUFFIX)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.writelines(parts)
            temporary.replace(file)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
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


# All connectors of this process share them.
get_disk_cache = lru_cache(maxsize=16)(DiskCache)

if hasattr(os, "register_at_fork"):
    # A lock may be held in the parent, by a thread that the child does not have.
    os.register_at_fork(after_in_child=get_disk_cache.cache_clear)
