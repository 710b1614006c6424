"""Header probes against imagesize (the size alone) and Pillow (open and getexif), over real files.

Without the corpus the files are made here, one of each format and a few sizes.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import imagesize
import pytest
from PIL import Image

from comparison import Comparison
from safelight import probe

TARGETS = [
    ("JPEG", "imagesize", 15.0),
    ("JPEG", "Pillow", 50.0),
    ("PNG", "imagesize", 12.0),
    ("PNG", "Pillow", 20.0),
    ("WEBP", "imagesize", 12.0),
    ("WEBP", "Pillow", 50.0),
    ("GIF", "imagesize", 8.0),
    ("GIF", "Pillow", 20.0),
    ("AVIF", "imagesize", 12.0),
    ("TIFF", "imagesize", 8.0),
    ("BMP", "imagesize", 8.0),
]


def imagesize_get(data: bytes) -> tuple[int, int]:
    width, height = imagesize.get(io.BytesIO(data))
    return int(width), int(height)


def pillow_open(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as image:
        image.getexif()
        return image.size


BASELINES = {"imagesize": imagesize_get, "Pillow": pillow_open}


def probe_each(payloads: Sequence[bytes]) -> list[Any]:
    return [probe(payload) for payload in payloads]


def each(read: Callable[[bytes], Any]) -> Callable[[Sequence[bytes]], list[Any]]:
    return lambda payloads: [read(payload) for payload in payloads]


def same_sizes(headers: list[Any], sizes: list[tuple[int, int]]) -> bool:
    return all(
        (header.width, header.height) == size for header, size in zip(headers, sizes, strict=True)
    )


def corpus_files(format: str) -> list[bytes]:
    if not os.environ.get("SAFELIGHT_CORPUS"):
        return []
    folder = Path(os.environ["SAFELIGHT_CORPUS"])
    lines = (folder / "truth.jsonl").read_text().splitlines()
    truths = [json.loads(line) for line in lines]
    return [
        (folder / truth["file"]).read_bytes()
        for truth in truths
        if truth["pillow"]["open"] is True and truth["pillow"]["format"] == format
    ]


def made_files(format: str) -> list[bytes]:
    files = []
    for side in (16, 300):
        buffer = io.BytesIO()
        Image.effect_noise((side, side), 60).convert("RGB").save(buffer, format)
        files.append(buffer.getvalue())
    return files


def is_read(read: Callable[[bytes], tuple[int, int]], data: bytes) -> bool:
    """Whether a baseline reads a file, and as the probe does: imagesize reads some wrong."""
    header = probe(data)
    try:
        return read(data) == (header.width, header.height)
    except Exception:  # noqa: BLE001 - whatever a baseline raises, it did not read the file
        return False


@pytest.mark.parametrize(("format", "against", "target"), TARGETS)
def test_probe(compare: Comparison, format: str, against: str, target: float) -> None:
    baseline = BASELINES[against]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = corpus_files(format) or made_files(format)
        payloads = [data for data in files if is_read(baseline, data)]
        compare(
            f"probe, {len(payloads)} {format} against {against}",
            ours=probe_each,
            baseline=each(baseline),
            args=(payloads,),
            equal=same_sizes,
            target=target,
        )
