"""The hasher: golden framing, what must differ, what must not, and nothing decoded."""

from __future__ import annotations

import hashlib
import itertools
import logging
import subprocess
import sys
import uuid
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from safelight import DecodeSpec, MediaRef, MultiModalHasher, RequestError, SpecError

ALGORITHMS = ["blake3", "sha256", "sha512"]


def hash_item(item: object, **options: Any) -> str:
    return MultiModalHasher.hash_kwargs("blake3", item=item, **options)


def must_not_decode() -> Any:
    pytest.fail("the decoder was called")


def must_differ(*items: object) -> None:
    hashes = [hash_item(item) for item in items]
    for (one, first), (other, second) in itertools.combinations(enumerate(hashes), 2):
        assert first != second, f"items {one} and {other}"


# --- the framing ---


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def reference_stream(value: Any) -> bytes:
    """The stream of a value as the module's header has it, for plain values."""
    if value is None:
        return b"\0"
    if isinstance(value, list):
        return b"\1" + len(value).to_bytes(8, "little") + b"".join(map(reference_stream, value))
    if isinstance(value, dict):
        entries = (frame(str(key).encode()) + reference_stream(value[key]) for key in value)
        return b"\2" + len(value).to_bytes(8, "little") + b"".join(entries)
    if isinstance(value, bytes):
        return b"\3" + frame(value) if value else b"\4"
    if isinstance(value, str):
        return b"\3" + frame(value.encode("utf-8", "surrogatepass"))
    return b"\3" + frame(np.array(value).tobytes())


int64s = st.integers(-(2**63), 2**63 - 1)
values = st.recursive(
    st.none() | st.booleans() | int64s | st.floats() | st.text() | st.binary(),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("sha256", "c5b0c748b3271b431e915aadae42394781e207ea636aec3b95f87abd4a522c2d"),
        ("blake3", "4f310627607f277870056fd324b80d2c47c9dc992f3684610b54c5037c9dd5b4"),
    ],
)
def test_golden_hashes(algorithm: str, expected: str) -> None:
    assert MultiModalHasher.hash_kwargs(algorithm, value="test") == expected


@given(st.dictionaries(st.text(), values, max_size=4))
def test_the_stream_is_as_its_specification_has_it(kwargs: dict[str, Any]) -> None:
    kwargs.pop("allow_pickle", None)
    stream = b"".join(
        frame(name.encode("utf-8", "surrogatepass")) + reference_stream(kwargs[name])
        for name in sorted(kwargs)
    )
    expected = {name: hashlib.new(name, stream).hexdigest() for name in ("sha256", "sha512")}
    expected["blake3"] = blake3(stream).hexdigest()
    assert expected == {name: MultiModalHasher.hash_kwargs(name, **kwargs) for name in ALGORITHMS}


@given(values, values)
def test_values_that_differ_have_hashes_that_differ(one: Any, other: Any) -> None:
    same = reference_stream(one) == reference_stream(other)
    assert (hash_item(one) == hash_item(other)) == same


def test_the_order_of_names_does_not_count() -> None:
    one = MultiModalHasher.hash_kwargs("blake3", a=1, b=2, c=3)
    assert MultiModalHasher.hash_kwargs("blake3", c=3, a=1, b=2) == one


@pytest.mark.parametrize("name", ["algorithm", "cls", "self", "kwargs", "obj", "key"])
def test_any_name_can_be_hashed(name: str) -> None:
    assert MultiModalHasher.hash_kwargs("blake3", **{name: 1})


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(RequestError, match="blake3, sha256, sha512"):
        MultiModalHasher.hash_kwargs("md5", value="test")


def test_chunks_are_what_is_hashed() -> None:
    chunks = b"".join(MultiModalHasher.iter_item_to_bytes("value", "test"))
    assert chunks == frame(b"value") + b"\3" + frame(b"test")
    assert b"".join(MultiModalHasher.serialize_item("test")) == frame(b"test")


def test_nesting_is_bounded() -> None:
    nested: Any = "leaf"
    for _ in range(64):
        nested = [nested]
    assert hash_item(nested)
    with pytest.raises(SpecError, match="64"):
        hash_item([nested])
    endless: list[Any] = []
    endless.append({"a": endless})
    with pytest.raises(SpecError):
        hash_item(endless)


# --- plain values ---


def test_chunks_do_not_borrow_from_each_other() -> None:
    def hash_kwargs(**kwargs: object) -> str:
        return MultiModalHasher.hash_kwargs("blake3", **kwargs)

    assert hash_kwargs(ab="c") != hash_kwargs(a="bc")
    assert hash_kwargs(a="b", c="d") != hash_kwargs(a="bc", d="")
    assert hash_kwargs(**{"a.b": 1}) != hash_kwargs(a={"b": 1})
    assert hash_kwargs(a={"b": 1, "c": 2}) != hash_kwargs(a={"b": 1}, c=2)
    assert hash_kwargs(a=None) != hash_kwargs()
    assert hash_kwargs(a={}) != hash_kwargs()
    assert hash_kwargs(a=[]) != hash_kwargs()


def test_containers_and_empty_values_differ() -> None:
    must_differ(None, "", b"", [], {}, [None], [[]], {"": None}, 0, False)
    must_differ([2, 4], {"0": 2, "1": 4}, [[2, 4]], [[2], 4], [2, [4]])
    must_differ({"a": {"b": 1}}, {"a.b": 1}, {"a": 1, "b": 1})
    must_differ([1, 2], [2, 1])


def test_numbers_differ() -> None:
    must_differ(1, 2, -1, True, 1.0, 1.5, "1", 2**31, 2**63, 2**64, -(2**63), -(2**63) - 1)
    # Where a reduction to 64 bits would fold them.
    must_differ(-1, 2**64 - 1, 2**128 - 1)
    must_differ(0.0, -0.0, float("inf"), float("nan"))


def test_buffers_are_equal_by_their_bytes() -> None:
    data = bytes(range(100))
    expected = hash_item(data)
    assert hash_item(bytearray(data)) == expected
    assert hash_item(memoryview(data)) == expected
    assert hash_item(memoryview(data + data)[:100]) == expected
    assert hash_item(memoryview(bytes(i // 2 for i in range(200)))[::2]) == expected
    for empty in (bytearray(), memoryview(b""), memoryview(np.zeros((3, 0), np.float32))):
        assert hash_item(empty) == hash_item(b"")


def test_tuples_and_lists_are_equal_and_so_are_mappings() -> None:
    assert hash_item((1, (2, 3))) == hash_item([1, [2, 3]])
    expected = hash_item({"a": 1, "b": 2})
    assert hash_item(OrderedDict(a=1, b=2)) == expected
    assert hash_item(MappingProxyType({"a": 1, "b": 2})) == expected


def test_the_whole_of_a_large_item_counts() -> None:
    # The head alone was hashed once, and a hash cut to 16 bits.
    items = [bytearray(3_000_000) for _ in range(5)]
    for item, position in zip(items[1:], (0, 65_536, 2_000_000, -1), strict=True):
        item[position] = 1
    must_differ(*items)
    assert [len(MultiModalHasher.hash_kwargs(name, a=1)) for name in ALGORITHMS] == [64, 64, 128]


@pytest.mark.parametrize(
    "item",
    [{1, 2}, frozenset({1}), object(), 1j, range(3), len, must_not_decode, uuid.UUID(int=1), Image],
)
@pytest.mark.parametrize("wrap", [lambda item: item, lambda item: [{"a": item}]])
def test_what_has_no_stable_bytes_is_refused_by_type(item: Any, wrap: Any) -> None:
    # Order of sets, addresses and pickles differ between processes.
    with pytest.raises(TypeError, match=type(item).__name__) as caught:
        hash_item(wrap(item))
    assert "0x" not in str(caught.value)


def test_pickles_are_hashed_on_demand_and_loudly(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "safelight"):
        first = hash_item(range(3), allow_pickle=True)
    assert "builtins.range" in caplog.text
    assert first != hash_item(range(4), allow_pickle=True)
    # It is no part of what is hashed.
    assert hash_item("plain", allow_pickle=True) == hash_item("plain")


# --- refs ---


def test_a_ref_counts_by_its_key_and_is_not_decoded() -> None:
    ref: MediaRef[str] = MediaRef(must_not_decode, b"payload", DecodeSpec({"a": 1}))
    stream = frame(b"item") + b"\3" + frame(ref.key)
    hashed = MultiModalHasher.hash_kwargs("sha256", item=ref)
    assert hashed == hashlib.sha256(stream).hexdigest()
    assert hash_item([ref, ref.fork()]) == hash_item([ref.fork(), ref])
    assert not ref.is_decoded
    must_differ(ref, ref.map(str, a=2), MediaRef(must_not_decode, b"payload"), b"payload", None)


def test_a_ref_counts_the_same_released_decoded_or_mapped() -> None:
    ref: MediaRef[str] = MediaRef(lambda: "media", b"payload")
    expected = hash_item(ref)
    assert hash_item(ref.map(str.upper)) == expected
    ref.decode()
    ref.release()
    assert hash_item(ref) == expected


# --- images ---


PIXELS = bytes(range(72))


def palette_image(palette: bytes, rawmode: str = "RGB") -> Image.Image:
    image = Image.new("P", (2, 2), 1)
    image.putpalette(palette, rawmode)
    return image


def test_size_and_mode_count_besides_the_pixels() -> None:
    # CVE-2025-46722.
    must_differ(
        *(
            Image.frombytes(mode, size, PIXELS)
            for mode, size in [
                ("RGB", (6, 4)),
                ("RGB", (4, 6)),
                ("L", (18, 4)),
                ("L", (4, 18)),
                ("RGBA", (6, 3)),
                ("CMYK", (6, 3)),
                ("RGBX", (6, 3)),
                ("I", (6, 3)),
                ("F", (6, 3)),
                ("I;16", (6, 6)),
                ("LA", (6, 6)),
                ("P", (18, 4)),
                ("HSV", (6, 4)),
                ("LAB", (6, 4)),
                ("YCbCr", (6, 4)),
                ("1", (192, 3)),
            ]
        )
    )
    must_differ(Image.new("1", (4, 4), 1), Image.new("L", (4, 4), 1), Image.new("L", (4, 4), 255))
    must_differ(Image.new("RGB", (0, 4)), Image.new("RGB", (4, 0)), Image.new("L", (0, 4)))


def test_palette_and_transparency_count() -> None:
    red, blue = palette_image(bytes([0, 0, 0, 255, 0, 0])), palette_image(bytes([0] * 5 + [255]))
    transparent = red.copy()
    transparent.info["transparency"] = 1
    other = red.copy()
    other.info["transparency"] = 0
    by_entry = red.copy()
    by_entry.info["transparency"] = bytes([255, 0])
    assert red.tobytes() == blue.tobytes()
    must_differ(red, blue, transparent, other, by_entry, Image.new("L", (2, 2), 1))
    must_differ(palette_image(bytes(range(12))), palette_image(bytes(range(12)), "RGBA"))


def test_transparency_counts_in_other_modes() -> None:
    plain, keyed = Image.new("RGB", (2, 2)), Image.new("RGB", (2, 2))
    keyed.info["transparency"] = (0, 0, 0)
    must_differ(plain, keyed)


def test_what_changes_no_pixel_does_not_count() -> None:
    image = Image.frombytes("RGB", (6, 4), PIXELS)
    expected = hash_item(image)
    described = image.copy()
    described.info.update(dpi=(300, 300), comment=b"hello")
    assert hash_item(described) == expected
    assert hash_item(image.crop((0, 0, 6, 4))) == expected
    assert expected != hash_item(np.asarray(image))


def test_an_image_counts_the_same_before_and_after_it_is_loaded(tmp_path: Any) -> None:
    source = palette_image(bytes([0, 0, 0, 255, 0, 0]))
    source.save(tmp_path / "p.png", transparency=1)
    with Image.open(tmp_path / "p.png") as image:
        expected = hash_item(image)
        image.load()
        assert hash_item(image) == expected
        assert hash_item(image.copy()) == expected


IMAGE_ID = 0x800D


def test_an_image_id_in_memory_stands_for_the_image() -> None:
    identity = uuid.uuid4()
    images = [Image.new("RGB", (2, 2)), Image.new("L", (3, 3))]
    for image in images:
        image.getexif()[IMAGE_ID] = identity
    assert hash_item(images[0]) == hash_item(images[1]) == hash_item(identity.bytes)


def test_an_image_id_that_a_file_could_hold_does_not() -> None:
    # Honoring it would let the maker of a file choose another item's identity.
    images = [Image.new("RGB", (2, 2)), Image.new("RGB", (2, 2), 1)]
    for image in images:
        image.getexif()[IMAGE_ID] = str(uuid.UUID(int=1))
    must_differ(*images)
    assert hash_item(images[0]) == hash_item(Image.new("RGB", (2, 2)))


@pytest.mark.parametrize("exif", [b"", b"garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM"])
def test_malformed_exif_does_not_matter(exif: bytes) -> None:
    image = Image.new("RGB", (2, 2))
    image.info["exif"] = exif
    assert hash_item(image) == hash_item(Image.new("RGB", (2, 2)))


# --- arrays ---


def test_shape_type_and_order_count_besides_the_bytes() -> None:
    array = np.arange(24, dtype=np.uint8)
    must_differ(
        array,
        array.reshape(4, 6),
        array.reshape(6, 4),
        array.reshape(2, 3, 4),
        array.reshape(4, 6).T,
        array.view(np.int8),
        array.view(np.float32),
        array.view(np.int32),
        array.view(np.dtype(">i4")),
        array.tobytes(),
        array.tolist(),
        array.view("V3"),
        array.view("M8[s]"),
        array.view("M8[ns]"),
        array.view([("a", "u1"), ("b", "u2")]),
        array.view([("b", "u2"), ("a", "u1")]),
    )
    must_differ(
        np.zeros(0), np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(0, np.uint8), np.zeros(())
    )


def test_views_are_equal_to_their_copies() -> None:
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    for view in (array[::2], array[:, ::-1], array.T, array[..., 1], np.asfortranarray(array)):
        assert hash_item(view) == hash_item(np.ascontiguousarray(view))
    assert hash_item(np.broadcast_to(array[:1], (3, 4, 5))) == hash_item(array[[0, 0, 0]])
    readonly = array.copy()
    readonly.flags.writeable = False
    assert hash_item(readonly) == hash_item(array)


def test_numpy_numbers_are_arrays_without_axes() -> None:
    assert hash_item(np.int64(5)) == hash_item(np.array(5))
    must_differ(np.int64(5), np.int32(5), np.uint8(5), 5, np.bool_(True))
    assert hash_item(np.float64(0.5)) == hash_item(0.5)


def test_arrays_without_stable_bytes_are_refused() -> None:
    for array in (np.array([object()]), np.zeros(2, [("a", "O")])):
        with pytest.raises(TypeError, match="objects"):
            hash_item(array)
    with pytest.raises(TypeError, match="mask"):
        hash_item(np.ma.masked_array([1, 2], mask=[True, False]))


# --- tensors ---


def test_tensors_count_by_type_shape_and_elements() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(24, dtype=torch.float32)
    must_differ(
        tensor,
        tensor.reshape(4, 6),
        tensor.reshape(6, 4),
        tensor.reshape(4, 6).T,
        tensor.to(torch.float16),
        tensor.to(torch.bfloat16),
        tensor.to(torch.bfloat16).view(torch.float16),
        tensor.to(torch.bfloat16).view(torch.uint8),
        tensor.to(torch.bfloat16).reshape(4, 6),
        tensor.to(torch.float8_e4m3fn),
        tensor.to(torch.float8_e5m2),
        tensor.to(torch.complex64),
        tensor.numpy(),
    )
    must_differ(torch.zeros((), dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16))


def test_tensor_views_are_equal_to_their_copies() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.arange(60).reshape(3, 4, 5).to(dtype)
        for view in (
            tensor[::2],
            tensor.permute(2, 0, 1),
            tensor[..., 1],
            tensor[:1].expand(3, 4, 5),
        ):
            assert hash_item(view) == hash_item(view.contiguous())
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert hash_item(numbers.conj()) == hash_item(numbers.conj().resolve_conj())
    assert hash_item(torch.ones(3, requires_grad=True)) == hash_item(torch.ones(3))
    assert hash_item(torch.nn.Parameter(torch.ones(3))) == hash_item(torch.ones(3))


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
def test_tensors_without_plain_elements_are_refused() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (
        torch.eye(3).to_sparse(),
        torch.zeros(3, device="meta"),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    ):
        with pytest.raises(TypeError, match="tensor"):
            hash_item(tensor)


def test_hashing_imports_neither_torch_nor_pillow() -> None:
    program = (
        "import sys\n"
        "from safelight.hashing import MultiModalHasher\n"
        "MultiModalHasher.hash_kwargs('blake3', a=[1, 'b', None])\n"
        "assert not {'torch', 'PIL.Image'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
