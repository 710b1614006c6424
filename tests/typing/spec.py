"""Types that a caller counts on, checked by mypy --strict and never run: specs and keys."""

from __future__ import annotations

from typing import Any, assert_type

from safelight.key import derive_media_key, derive_media_keys
from safelight.spec import DecodeSpec

spec = DecodeSpec({"mode": "RGB"})
assert_type(spec, DecodeSpec)
assert_type(spec.settings, dict[str, Any])
assert_type(spec.extend(size=[32, 32]), DecodeSpec)
assert_type(spec.canonical_bytes(), bytes)
assert_type(derive_media_key(b"payload", spec), bytes)
assert_type(derive_media_keys([b"one", b"two"], spec), list[bytes])

DecodeSpec(["mode"])  # type: ignore[arg-type]  # settings are a mapping
derive_media_key("text", spec)  # type: ignore[arg-type]  # payloads are bytes
derive_media_key(b"payload", {"mode": "RGB"})  # type: ignore[arg-type]  # the spec is made first
