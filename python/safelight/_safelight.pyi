"""The compiled part of safelight, held to the binary by stubtest. One section a noun."""

from collections.abc import Sequence
from typing import Self

from typing_extensions import disjoint_base

# --- spec ---

@disjoint_base
class CanonicalSpec:
    def __new__(cls, canonical: bytes) -> Self: ...
    def canonical_bytes(self) -> bytes: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

# --- key ---

def derive_media_key(data: bytes | bytearray, spec: CanonicalSpec) -> bytes: ...
def derive_media_keys(
    payloads: Sequence[bytes | bytearray], spec: CanonicalSpec
) -> list[bytes]: ...

# --- base64 ---

def decode_base64(data: str | bytes | bytearray, start: int = 0) -> bytes: ...
