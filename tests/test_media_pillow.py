"""Pillow's path: what the process has told Pillow does not count, and whose fault an error is."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import GifImagePlugin, Image, ImageFile, PngImagePlugin, TiffImagePlugin

from safelight import DecodeError, ImageMediaIO, MediaError
from safelight.media import pillow

pytestmark = pytest.mark.timeout(60)


def encoded(image_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image = Image.linear_gradient("L").resize((64, 48)).convert(options.pop("mode", "RGB"))
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


@pytest.fixture
def truncation() -> Iterator[None]:
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        yield
        assert ImageFile.LOAD_TRUNCATED_IMAGES, "the process has its own setting again"
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


@pytest.mark.usefixtures("truncation")
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "BMP", "TIFF", "PPM", "JPEG2000", "TGA"])
@pytest.mark.parametrize("image_mode", ["RGB", None])
def test_half_a_file_is_never_part_of_a_picture(image_format: str, image_mode: str | None) -> None:
    data = encoded(image_format)
    for decoder in ("native", "pillow"):
        media_io = ImageMediaIO(image_mode, decoder=decoder)
        assert media_io.load_bytes(data).size == (64, 48)
        with pytest.raises(MediaError):
            media_io.load_bytes(data[: len(data) // 2])
        with pytest.raises(MediaError):
            media_io.load_bytes_ref(data[: len(data) // 2]).decode()


def test_threads_share_the_override_and_the_last_one_gives_it_back(truncation: None) -> None:
    seen = []
    inside, leave = threading.Barrier(3), threading.Barrier(3)

    def look() -> None:
        inside.wait(30)
        seen.append(ImageFile.LOAD_TRUNCATED_IMAGES)
        leave.wait(30)

    threads = [threading.Thread(target=pillow.undisturbed, args=(look,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [False] * 3


def test_a_setting_that_changes_midway_makes_it_start_again() -> None:
    calls = []

    def decode() -> int:
        calls.append(ImageFile.LOAD_TRUNCATED_IMAGES)
        ImageFile.LOAD_TRUNCATED_IMAGES = len(calls) == 1
        return len(calls)

    try:
        assert pillow.undisturbed(decode) == 2
        assert calls == [False, False]
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (GifImagePlugin, "LOADING_STRATEGY", GifImagePlugin.LoadingStrategy.RGB_ALWAYS),
        (TiffImagePlugin, "READ_LIBTIFF", True),
        (Image, "MAX_IMAGE_PIXELS", 16),
        (Image, "MAX_IMAGE_PIXELS", None),
        (PngImagePlugin, "MAX_TEXT_CHUNK", 1 << 30),
    ],
)
def test_no_setting_changes_the_result(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any
) -> None:
    payloads = [encoded(image_format) for image_format in ("GIF", "TIFF", "PNG", "JPEG", "TGA")]
    media_io = ImageMediaIO(None, decoder="pillow")

    def results() -> list[tuple[Any, ...]]:
        images = [media_io.load_bytes(data) for data in payloads]
        return [(image.mode, image.size, image.tobytes()) for image in images]

    expected = results()
    monkeypatch.setattr(module, name, value)
    assert results() == expected


def test_a_warning_that_was_made_an_error_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded("TGA")
    load = ImageFile.ImageFile.load

    def warns(image: ImageFile.ImageFile) -> Any:
        warnings.warn("this file is odd", Image.DecompressionBombWarning, stacklevel=2)
        return load(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ImageMediaIO(decoder="pillow").load_bytes(data).size == (64, 48)


@pytest.mark.parametrize("error", [MemoryError, RuntimeError("cannot start a thread")])
@pytest.mark.parametrize("method", ["load", "convert"])
def test_what_the_machine_lacks_is_no_fault_of_the_bytes(
    monkeypatch: pytest.MonkeyPatch, error: Any, method: str
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise error

    data = encoded("TGA")
    monkeypatch.setattr(Image.Image if method == "convert" else ImageFile.ImageFile, method, fails)
    with pytest.raises(error if isinstance(error, type) else type(error)) as caught:
        ImageMediaIO("HSV", decoder="pillow").load_bytes(data)
    assert not isinstance(caught.value, MediaError)


@pytest.mark.parametrize("error", [OSError, SyntaxError, ValueError, NotImplementedError, KeyError])
def test_what_pillow_raises_for_damage_is_a_decode_error(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise error("secret")

    data = encoded("TGA")
    monkeypatch.setattr(ImageFile.ImageFile, "load", fails)
    with pytest.raises(DecodeError) as caught:
        ImageMediaIO(decoder="pillow").load_bytes(data)
    assert "secret" not in str(caught.value)
