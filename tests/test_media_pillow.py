"""Pillow's path: what the process has told Pillow does not count, and whose fault an error is."""

from __future__ import annotations

import importlib
import io
import pickle
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import GifImagePlugin, Image, ImageFile, PngImagePlugin, TiffImagePlugin

from safelight import DecodeError, ImageMediaIO, MediaError
from safelight.media import pillow_instance
from safelight.media.image import ALLOWED_IMAGE_FORMATS

pytestmark = pytest.mark.timeout(60)

OwnImage = pillow_instance.Image
OwnImageFile = importlib.import_module(f"{pillow_instance.__name__}.ImageFile")


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
        assert ImageFile.LOAD_TRUNCATED_IMAGES, "the process keeps its own setting"
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


def test_the_process_keeps_its_settings_while_images_are_decoded(
    truncation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, leave = threading.Barrier(2), threading.Barrier(2)
    load = OwnImageFile.ImageFile.load

    def waits(image: Any) -> Any:
        inside.wait(30)
        leave.wait(30)
        return load(image)

    monkeypatch.setattr(OwnImageFile.ImageFile, "load", waits)
    half = encoded("TGA")[:4000]
    raised: list[BaseException] = []

    def decode() -> None:
        try:
            ImageMediaIO(decoder="pillow").load_bytes(half)
        except MediaError as error:
            raised.append(error)

    thread = threading.Thread(target=decode)
    thread.start()
    inside.wait(30)
    with Image.open(io.BytesIO(half)) as image:
        image.load()
    leave.wait(30)
    thread.join(30)
    assert [type(error) for error in raised] == [DecodeError]


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (GifImagePlugin, "LOADING_STRATEGY", GifImagePlugin.LoadingStrategy.RGB_ALWAYS),
        (TiffImagePlugin, "READ_LIBTIFF", True),
        (Image, "MAX_IMAGE_PIXELS", 16),
        (Image, "MAX_IMAGE_PIXELS", None),
        (PngImagePlugin, "MAX_TEXT_CHUNK", 1),
        (PngImagePlugin, "MAX_TEXT_CHUNK", 1 << 30),
        (Image, "OPEN", {}),
    ],
)
def test_no_setting_changes_the_result(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any
) -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "x" * 100, zip=True)
    payloads = [encoded(image_format) for image_format in ("GIF", "TIFF", "PNG", "JPEG", "TGA")]
    payloads.append(encoded("PNG", pnginfo=text))
    media_io = ImageMediaIO(None, decoder="pillow")

    def results() -> list[tuple[Any, ...]]:
        images = [media_io.load_bytes(data) for data in payloads]
        return [(image.mode, image.size, image.info, image.tobytes()) for image in images]

    expected = results()
    monkeypatch.setattr(module, name, value)
    assert results() == expected


def icon_of_another_size() -> bytes:
    """Pillow warns that its picture is not of the size that the icon states."""
    inner = encoded("PNG")
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(inner), 22) + inner


def test_a_warning_that_was_made_an_error_is_no_damage() -> None:
    data = icon_of_another_size()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning), Image.open(io.BytesIO(data)):
            pass
        assert ImageMediaIO().load_bytes(data).size == (64, 48)


@pytest.mark.parametrize("image_mode", [None, "RGB", "P"])
@pytest.mark.parametrize("mode", ["RGB", "P", "RGBA", "I;16", "1"])
def test_images_are_those_of_everybody(mode: str, image_mode: str | None) -> None:
    data = encoded("PNG", mode=mode)
    image = ImageMediaIO(image_mode, decoder="pillow").load_bytes(data)
    assert type(image) is Image.Image
    with Image.open(io.BytesIO(data)) as expected:
        assert image.tobytes() == expected.convert(image.mode).tobytes()
    again = pickle.loads(pickle.dumps(image))
    assert again == image
    assert image.resize((8, 8)).convert("RGB").size == (8, 8)
    if image.mode == "P":
        assert isinstance(image.palette, type(Image.new("P", (1, 1)).palette))
        assert image.getpalette() == again.getpalette()


def test_a_plug_in_of_the_process_serves_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnFormat(ImageFile.ImageFile):
        format = "OWNFORMAT"

        def _open(self) -> None:
            assert self.fp is not None
            self._size = self.fp.read(5)[4], 1
            self._mode = "L"
            self.tile = [ImageFile._Tile("raw", (0, 0, *self.size), 5, ("L", 0, 1))]

    opener = (OwnFormat, lambda prefix: prefix.startswith(b"OWNF"))
    monkeypatch.setitem(Image.OPEN, "OWNFORMAT", opener)
    data = b"OWNF\x03\x01\x02\x03"
    with pytest.raises(MediaError):
        ImageMediaIO("L").load_bytes(data)
    image = ImageMediaIO("L", formats=["PNG", "OWNFORMAT"]).load_bytes(data)
    assert image.tobytes() == b"\1\2\3"


@pytest.mark.parametrize("error", [MemoryError, RuntimeError("cannot start a thread")])
@pytest.mark.parametrize("method", ["load", "convert"])
def test_what_the_machine_lacks_is_no_fault_of_the_bytes(
    monkeypatch: pytest.MonkeyPatch, error: Any, method: str
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise error

    data = encoded("TGA")
    owner = Image.Image if method == "convert" else OwnImageFile.ImageFile
    monkeypatch.setattr(owner, method, fails)
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
    monkeypatch.setattr(OwnImageFile.ImageFile, "load", fails)
    with pytest.raises(DecodeError) as caught:
        ImageMediaIO(decoder="pillow").load_bytes(data)
    assert "secret" not in str(caught.value)


SAVED = sorted({*ALLOWED_IMAGE_FORMATS} & {*Image.SAVE} - {"DCX", "IM"})


@pytest.mark.parametrize("image_format", SAVED)
def test_damage_anywhere_is_the_fault_of_the_bytes(image_format: str) -> None:
    mode = "1" if image_format == "XBM" else "P" if image_format == "IMT" else "RGB"
    mode = "F" if image_format == "SPIDER" else mode
    data = encoded(image_format, mode=mode)
    media_io = ImageMediaIO(decoder="pillow", max_image_pixels=1 << 20)
    step = max(1, len(data) // 150)
    for position in range(0, len(data), step):
        for damaged in (
            data[:position],
            data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :],
        ):
            try:
                media_io.load_bytes(damaged)
            except MediaError:
                continue


def test_pillow_is_run_once_more_for_what_native_code_declines_only() -> None:
    program = (
        "import io, sys; from PIL import Image; from safelight import ImageMediaIO\n"
        "def png(mode):\n"
        "    buffer = io.BytesIO(); Image.new(mode, (2, 2)).save(buffer, 'PNG')\n"
        "    return buffer.getvalue()\n"
        "name = 'safelight.media.pillow_instance'\n"
        "ImageMediaIO().load_bytes(png('RGB')); assert name not in sys.modules\n"
        "ImageMediaIO(None).load_bytes(png('RGB')); assert name in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)


def test_threads_and_forks_find_it_whole() -> None:
    program = (
        "import io, os, sys, threading; from PIL import Image; from safelight import ImageMediaIO\n"
        "buffer = io.BytesIO(); Image.new('RGB', (9, 9), 'red').save(buffer, 'TGA')\n"
        "gate, done = threading.Barrier(8), []\n"
        "def decode():\n"
        "    gate.wait(30); done.append(ImageMediaIO().load_bytes(buffer.getvalue()).size)\n"
        "threads = [threading.Thread(target=decode) for _ in range(8)]\n"
        "[thread.start() for thread in threads]; [thread.join(40) for thread in threads]\n"
        "assert done == [(9, 9)] * 8, done\n"
        "child = os.fork() if hasattr(os, 'fork') else 0\n"
        "assert ImageMediaIO().load_bytes(buffer.getvalue()).size == (9, 9)\n"
        "if not child: os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)
