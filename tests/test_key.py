"""Media keys: golden vectors, an independent reference, and what must count."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safelight import DecodeSpec, derive_media_key, derive_media_keys

VECTORS = json.loads((Path(__file__).parent / "data" / "keys.json").read_text())

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=10,
)
settings_dicts = st.dictionaries(st.text(), json_values, max_size=4)


def reference_key(data: bytes, settings: dict[str, Any]) -> bytes:
    """The key as its specification has it, from the standard library alone."""
    spec = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    digest = hashlib.sha256()
    for chunk in (data, spec):
        digest.update(len(chunk).to_bytes(8, "little") + chunk)
    return digest.digest()


@pytest.mark.parametrize("vector", VECTORS["derive"], ids=lambda vector: vector["canonical"][:40])
def test_derived_keys_are_golden(vector: dict[str, str]) -> None:
    spec = DecodeSpec(json.loads(vector["settings"]))
    assert spec.canonical_bytes().decode() == vector["canonical"]
    assert derive_media_key(bytes.fromhex(vector["payload"]), spec).hex() == vector["key"]


@pytest.mark.parametrize("vector", VECTORS["extend"], ids=lambda vector: vector["canonical"])
def test_extended_keys_are_golden(vector: dict[str, str]) -> None:
    spec = DecodeSpec(json.loads(vector["settings"])).extend(**json.loads(vector["more"]))
    assert spec.canonical_bytes().decode() == vector["canonical"]
    assert derive_media_key(bytes.fromhex(vector["parent"]), spec).hex() == vector["key"]


@given(st.binary(max_size=300), settings_dicts)
def test_equals_the_reference(data: bytes, settings: dict[str, Any]) -> None:
    assert derive_media_key(data, DecodeSpec(settings)) == reference_key(data, settings)


@pytest.mark.parametrize("size", [32 * 1024 - 1, 32 * 1024, 1_000_003])
def test_equals_the_reference_where_the_interpreter_is_released(size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    assert derive_media_key(data[:size], DecodeSpec({"a": 1})) == reference_key(
        data[:size], {"a": 1}
    )


@given(st.lists(st.binary(max_size=100), max_size=20))
def test_a_batch_is_the_keys_one_by_one(payloads: list[bytes]) -> None:
    spec = DecodeSpec({"fps": 2})
    assert derive_media_keys(payloads, spec) == [derive_media_key(data, spec) for data in payloads]


@pytest.mark.parametrize("position", [0, 65_536, -1])
def test_every_byte_of_a_large_payload_counts(position: int) -> None:
    # A prefix of the payload, or of its base64, was once all that was hashed.
    payload = bytes(200_000)
    other = bytearray(payload)
    other[position] ^= 1
    spec = DecodeSpec()
    assert derive_media_key(payload, spec) != derive_media_key(bytes(other), spec)


def test_chunks_do_not_borrow_from_each_other() -> None:
    assert derive_media_key(b"ab", DecodeSpec({})) != derive_media_key(b"ab{}", DecodeSpec({}))
    assert derive_media_key(b"", DecodeSpec()) != derive_media_key(b"\0", DecodeSpec())


@pytest.mark.parametrize("wrap", [bytearray, memoryview])
def test_other_buffers_have_the_key_of_their_bytes(wrap: Any) -> None:
    spec = DecodeSpec()
    assert derive_media_key(wrap(b"payload"), spec) == derive_media_key(b"payload", spec)
    assert derive_media_keys([wrap(b"payload")], spec) == [derive_media_key(b"payload", spec)]


@pytest.mark.parametrize("data", ["text", 5, None, [1, 2]])
def test_what_is_no_buffer_is_refused(data: Any) -> None:
    with pytest.raises(TypeError):
        derive_media_key(data, DecodeSpec())


def test_a_key_is_32_bytes_and_nothing_shorter() -> None:
    # Placeholders made of a shortened hash mixed up pictures.
    key = derive_media_key(b"x", DecodeSpec())
    assert type(key) is bytes
    assert len(key) == 32


@pytest.mark.timeout(120)
def test_keys_are_the_same_in_every_process() -> None:
    # Hash seeds, addresses and the order of sets differ between processes.
    program = (
        "from safelight import DecodeSpec, MultiModalHasher, derive_media_key\n"
        "spec = DecodeSpec({'b': {'y': 2, 'x': [1.5, None]}, 'a': 'é'})\n"
        "print(derive_media_key(b'payload', spec).hex(), hash(spec))\n"
        "item = {'b': 1, 'a': [b'x', 2.5, None]}\n"
        "print(MultiModalHasher.hash_kwargs('blake3', item=item, z='z'))\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(answers) == 1
