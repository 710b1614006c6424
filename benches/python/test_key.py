"""Keys against the same framing with `hashlib`: one payload, and batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from comparison import Comparison
from safelight import DecodeSpec, derive_media_key, derive_media_keys

SPEC = DecodeSpec({"format": "RGB", "max_pixels": 178_956_970})


def framed_hashlib(data: bytes, spec: DecodeSpec) -> bytes:
    """What a Python implementation does: the published framing over `hashlib`."""
    canonical = spec.canonical_bytes()
    digest = hashlib.sha256(len(data).to_bytes(8, "little"))
    digest.update(data)
    digest.update(len(canonical).to_bytes(8, "little"))
    digest.update(canonical)
    return digest.digest()


def framed_hashlib_batch(payloads: Sequence[bytes], spec: DecodeSpec) -> list[bytes]:
    return [framed_hashlib(payload, spec) for payload in payloads]


@pytest.mark.parametrize(
    ("size", "target"), [(64, 3.0), (1 << 10, 1.5), (64 << 10, 0.97), (1 << 20, 0.97)]
)
def test_one_key(compare: Comparison, size: int, target: float) -> None:
    compare(
        f"key, {size:,} B",
        ours=derive_media_key,
        baseline=framed_hashlib,
        args=(bytes(size), SPEC),
        target=target,
    )


@pytest.mark.parametrize(("count", "size", "target"), [(256, 640, 2.5), (16, 160 << 10, 1.3)])
def test_batch_of_keys(compare: Comparison, count: int, size: int, target: float) -> None:
    payloads = [index.to_bytes(4, "little") * (size // 4) for index in range(count)]
    compare(
        f"keys, {count} x {size:,} B",
        ours=derive_media_keys,
        baseline=framed_hashlib_batch,
        args=(payloads, SPEC),
        target=target,
    )
