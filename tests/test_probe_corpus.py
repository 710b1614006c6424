"""The probe against the installed Pillow, over every file of the corpus that Pillow opens."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from safelight import ImageHeader, MediaError, NeedMoreBytes, probe, probe_files, probe_prefix

# Formats of which mode, orientation and ids are promised, besides the size.
FULL = {"BMP", "DIB", "GIF", "JPEG", "MPO", "PNG", "TIFF", "WEBP"}


def files_that_open(corpus: Path) -> Iterator[tuple[str, bytes]]:
    for line in (corpus / "truth.jsonl").read_text().splitlines():
        truth = json.loads(line)
        if truth["pillow"]["open"] is True:
            yield truth["file"], (corpus / truth["file"]).read_bytes()


def exif_facts(image: Image.Image) -> tuple[int, object, object]:
    """Orientation and ids as Pillow reads them; what it cannot read is absent."""
    try:
        exif = image.getexif()
        orientation = exif.get(0x0112, 1)
        ids = exif.get(0x800D), exif.get_ifd(0x8769).get(0xA420)
    except Exception:
        return 1, None, None
    return (orientation if orientation in range(1, 9) else 1), *ids


@pytest.mark.filterwarnings("ignore")
def test_every_fully_answered_file_reads_as_the_installed_pillow_opens_it(corpus: Path) -> None:
    differences = []
    for name, data in files_that_open(corpus):
        with Image.open(io.BytesIO(data)) as image:
            if image.format not in FULL:
                continue
            header = probe(data)
            ours = (header.format, (header.width, header.height), header.mode)
            theirs = (image.format, image.size, image.mode)
            facts = (header.orientation, header.image_id, header.image_unique_id)
            if (ours, facts) != (theirs, exif_facts(image)):
                differences.append(name)
    assert not differences


def outcome(data: bytes) -> ImageHeader | MediaError:
    try:
        return probe(data)
    except MediaError as error:
        return error


def told(answer: ImageHeader | MediaError | OSError) -> object:
    return answer if isinstance(answer, ImageHeader) else (type(answer), str(answer))


def test_files_read_as_their_bytes_do(corpus: Path) -> None:
    paths = [path for path in sorted(corpus.rglob("*.*")) if path.suffix != ".jsonl"]
    for path, answer in zip(paths, probe_files(paths), strict=True):
        assert told(answer) == told(outcome(path.read_bytes())), path.name


def test_a_prefix_of_four_kilobytes_is_mostly_enough(corpus: Path) -> None:
    answers = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, data in files_that_open(corpus):
            try:
                answers.append(probe_prefix(data[:4096]))
            except MediaError:
                continue
    headers = sum(isinstance(answer, ImageHeader) for answer in answers)
    waiting = sum(isinstance(answer, NeedMoreBytes) for answer in answers)
    assert headers > 4 * waiting
