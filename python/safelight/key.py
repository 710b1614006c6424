"""Media keys: the cache identity of a payload under a spec.

Owns the names; the hashing is Rust's (``rust/core/src/key.rs``). The functions are built-ins,
not wrappers, because a wrapper would cost as much as hashing a small payload.
"""

from __future__ import annotations

from safelight._safelight import derive_media_key, derive_media_keys

__all__ = ["derive_media_key", "derive_media_keys"]
