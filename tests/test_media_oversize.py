"""What declares too large a size is refused at once, however damaged the rest is."""

from __future__ import annotations

import pickle
import struct

import pytest

from safelight import HeaderError, ImageMediaIO, LimitError, MediaError, probe


def oversize() -> dict[str, bytes]:
    """Pictures that declare 60,000 x 60,000 pixels, or as many as the format can, then damage."""
    side = struct.pack(">I", 60_000)
    bad_chunk = struct.pack(">I", 8) + b"\0\0\0\0"
    frame = b"\xff\xc0\0\x11\x0c" + struct.pack(">HH", 60_000, 60_000) + b"\3" + bytes(9)
    webp = b"VP8X" + struct.pack("<I", 10) + b"\x10\0\0\0" + b"\xff\x3f\1" * 2
    directory = [(256, 4, 60_000), (257, 4, 60_000), (277, 4, 99)]
    tiff = b"II*\0" + struct.pack("<IH", 8, len(directory))
    tiff += b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in directory)
    bitmap = struct.pack("<IiiHHIIiiII", 40, 60_000, 60_000, 1, 32, 9, 0, 0, 0, 0, 0)
    return {
        "PNG": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + side * 2 + b"\x08\2\0\0\0\0\0\0\0" + bad_chunk,
        "PNG, filter": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + side * 2 + b"\x08\2\0\7\0\0\0\0\0",
        "JPEG": b"\xff\xd8" + frame,
        "JPEG, reserved marker": b"\xff\xd8" + frame.replace(b"\x0c", b"\x08", 1) + b"\xff\2",
        "WEBP": b"RIFF\xff\xff\0\0WEBP" + webp + b"VP8L" + struct.pack("<I", 99) + bytes(9),
        "TIFF": tiff + bytes(4),
        "BMP": b"BM" + bytes(12) + bitmap,
        "GIF": b"GIF89a" + struct.pack("<HHBBB", 60_000, 60_000, 0, 0, 0) + b";",
        "PPM": b"P6 60000 60000 0\n",
        "PAM": b"P7\nWIDTH 60000\nHEIGHT 60000\nWHAT 1\n",
    }


@pytest.mark.parametrize("name", oversize())
def test_a_declared_size_is_judged_whatever_comes_after(name: str) -> None:
    data = oversize()[name] + bytes(8192)
    media_io = ImageMediaIO()
    for ask in (media_io.check_prefix, media_io.load_bytes_ref, media_io.load_bytes):
        with pytest.raises(LimitError, match="over max_image_pixels"):
            ask(data)
    [error] = media_io.load_bytes_refs([data])
    assert isinstance(error, LimitError)
    assert error.actual is not None
    with pytest.raises(MediaError) as refused:
        probe(data)
    copy = pickle.loads(pickle.dumps(refused.value.at("image", 3)))
    width, height = copy.size
    assert (width * height, copy.index) == (error.actual, 3)
    # Below the limit the damage is what is told, and only when it is decoded.
    ref = ImageMediaIO(max_image_pixels=0).load_bytes_ref(data)
    with pytest.raises(MediaError):
        ref.decode()


def test_an_error_that_knows_no_size_says_so() -> None:
    with pytest.raises(HeaderError) as refused:
        probe(b"hello, world, this is a line of plain text and no image")
    assert (refused.value.format, refused.value.size) == (None, None)
