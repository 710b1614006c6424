"""Runs of the command line, for its tests: documents, results, and the one line of a failure."""

from __future__ import annotations

import hashlib
import io
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from safelight.cli import main
from tiny_model import data_url, image_part, png

SAFELIGHT = [sys.executable, "-c", "from safelight.cli import main; raise SystemExit(main())"]


def picture(seed: int, width: int = 64, height: int = 48) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def turned_jpeg() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    picture(7, 80, 40).save(buffer, "JPEG", exif=exif)
    return buffer.getvalue()


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    if arguments[0] == "render" and "--model" not in arguments:
        arguments = (*arguments, "--model", "demo")
    status = main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run what must fail as a failed chat does, and return its one line."""
    status, out, err = run(capsys, *arguments)
    assert status == 1
    assert out == ""
    assert err.startswith("safelight: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.rstrip("\n")


def sha256(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


# Parts of three images, so that a fourth is image 3.
GOOD = [image_part(data_url(png(picture(n)))) for n in range(3)]
