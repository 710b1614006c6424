"""Identity asks the decoder: overrides are asked, whatever the entry and whoever decodes."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from safelight import (
    DecodedBudget,
    DecodeSpec,
    ImageMediaIO,
    MediaConnector,
    MediaRef,
    collect_media_decodes,
    derive_media_key,
    submit_media_decodes,
)

pytestmark = pytest.mark.timeout(60)


def png(size: tuple[int, int] = (8, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (10, 20, 30)).save(buffer, "PNG")
    return buffer.getvalue()


class Inverted(ImageMediaIO):
    """Makes other pixels of the default's, and says so."""

    def load_bytes(self, data: bytes) -> Any:
        return super().load_bytes(data).point(lambda level: 255 - level)

    def get_decode_spec(self) -> DecodeSpec:
        return super().get_decode_spec().extend(inverted=True)


class Redirected(ImageMediaIO):
    """Decodes another payload than it is given."""

    def load_bytes(self, data: bytes) -> Any:
        return super().load_bytes(png((2, 2)))


class Foreign(ImageMediaIO):
    """Never asks the default."""

    def load_bytes(self, data: bytes) -> Any:
        return Image.new("L", (1, 1), len(data) % 256)


def by_jobs(media_io: ImageMediaIO, payloads: list[bytes]) -> list[Any]:
    refs = media_io.load_bytes_refs(payloads)
    assert all(isinstance(ref, MediaRef) for ref in refs)
    return collect_media_decodes(submit_media_decodes(list(refs)))  # type: ignore[misc]


ENTRIES: dict[str, Callable[[ImageMediaIO, bytes, Path], Any]] = {
    "bytes": lambda media_io, data, _: media_io.load_bytes(data),
    "ref": lambda media_io, data, _: media_io.load_bytes_ref(data).decode(),
    "fork": lambda media_io, data, _: media_io.load_bytes_ref(data).fork().decode(),
    "map": lambda media_io, data, _: (
        media_io.load_bytes_ref(data).map(lambda image: image).decode()
    ),
    "job": lambda media_io, data, _: by_jobs(media_io, [data])[0],
    "jobs": lambda media_io, data, _: by_jobs(media_io, [data, png((3, 3)), data])[2],
    "base64": lambda media_io, data, _: media_io.load_base64(
        "image/png", base64.b64encode(data).decode()
    ),
    "file": lambda media_io, data, folder: media_io.load_file(write(folder, data)),
    "url": lambda media_io, data, _: (
        MediaConnector()
        .fetch_image(f"data:image/png;base64,{base64.b64encode(data).decode()}", media_io)
        .decode()
    ),
}


def write(folder: Path, data: bytes) -> Path:
    path = folder / "image.png"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("entry", ENTRIES)
def test_load_bytes_is_asked(entry: str, tmp_path: Path) -> None:
    load = ENTRIES[entry]
    assert load(ImageMediaIO(), png(), tmp_path).getpixel((0, 0)) == (10, 20, 30)
    assert load(Inverted(), png(), tmp_path).getpixel((0, 0)) == (245, 235, 225)
    assert load(Redirected(), png(), tmp_path).size == (2, 2)
    media_io = Foreign()
    for _ in range(2):
        assert load(media_io, png(), tmp_path).getpixel((0, 0)) == len(png()) % 256


def test_the_spec_is_asked() -> None:
    spec = ImageMediaIO().get_decode_spec().extend(inverted=True)
    key = derive_media_key(png(), spec)
    media_io = Inverted()
    (batched,) = media_io.load_bytes_refs([png()])
    assert isinstance(batched, MediaRef)
    for ref in (media_io.load_bytes_ref(png()), batched):
        assert ref.spec == spec
        assert ref.key == key
    assert ImageMediaIO().load_bytes_ref(png()).key != key


def test_a_subclass_that_decodes_by_itself_is_not_decoded_for() -> None:
    budget = DecodedBudget(10_000)
    media_io = Foreign(decoded_budget=budget)
    images = by_jobs(media_io, [png(), png((3, 3)), png((5, 5))])
    assert [image.size for image in images] == [(1, 1)] * 3
    assert media_io.load_bytes_ref(png()).decode().size == (1, 1)
    assert media_io.decodes_itself


@pytest.mark.parametrize("formats", [["PNG"], ["PNG", "JPEG"], ["JPEG", "PNG"]])
def test_formats_are_in_the_spec(formats: list[str]) -> None:
    default = ImageMediaIO().get_decode_spec()
    spec = ImageMediaIO(formats=formats).get_decode_spec()
    assert spec == default.extend(formats=formats)
    assert ImageMediaIO(formats=None).get_decode_spec() == default


class Checkered(ImageMediaIO):
    """Sees what is transparent before it is pasted over."""

    def _convert_image_mode(self, image: Image.Image) -> Image.Image:
        assert image.mode == "RGBA"
        return Image.new("RGB", image.size, (1, 2, image.getpixel((0, 0))[3]))  # type: ignore[index]

    def get_decode_spec(self) -> DecodeSpec:
        return super().get_decode_spec().extend(checkered=True)


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_conversion_is_asked(entry: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGBA", (3, 3), (10, 20, 30, 40)).save(buffer, "PNG")
    data = buffer.getvalue()
    image = (
        by_jobs(Checkered(), [data])[0]
        if entry == "jobs"
        else ENTRIES[entry](Checkered(), data, tmp_path)
    )
    assert image.getpixel((0, 0)) == (1, 2, 40)
    patched = ImageMediaIO()
    patched._convert_image_mode = lambda image: image.convert("L")  # type: ignore[method-assign]
    assert by_jobs(patched, [data])[0].mode == "L"


class ByText(ImageMediaIO):
    """Overrides what vLLM's own decoders override."""

    def load_base64(self, media_type: str, data: str) -> Any:
        return media_type, super().load_base64(media_type, data).size

    def load_file(self, filepath: Any) -> Any:
        return Path(filepath).name, super().load_file(filepath).size


def test_base64_and_files_are_asked(tmp_path: Path) -> None:
    media_io, text = ByText(), base64.b64encode(png()).decode()
    path = write(tmp_path, png())
    assert media_io.load_base64("image/png", text) == ("image/png", (8, 4))
    ref = media_io.load_base64_ref("image/png", text)
    assert ref.decode() == ("image/png", (8, 4))
    assert ref.key != media_io.load_base64_ref("image/jpeg", text).key
    assert media_io.load_file(path) == ("image.png", (8, 4))
    assert media_io.load_file_ref(path).decode() == ("image.png", (8, 4))
    fetched = MediaConnector().fetch_image(f"data:image/png;base64,{text}", media_io)
    assert fetched.decode() == ("image/png", (8, 4))
    assert media_io.load_bytes(png()).size == (8, 4)
