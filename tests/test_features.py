"""What a build says of its native libraries, and versions that must not be in one."""

from __future__ import annotations

import json
import platform
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from PIL import Image

import safelight
from command import run
from pixels_reference import encode
from safelight._safelight import DecodeRequest, decode_image

LIBRARIES = ["libjpeg-turbo", "libwebp", "libdeflate"]

# The first version without the faults that are known. None is known of libdeflate.
SOUND = {
    "libjpeg-turbo": (3, 0, 4),  # CVE-2023-2804, and what was mended since
    "libwebp": (1, 3, 2),  # CVE-2023-4863
}


def test_what_a_build_tells() -> None:
    features = safelight.features()
    assert list(features) == ["safelight", *LIBRARIES, "simd"]
    assert features["safelight"] == version("safelight")
    assert all(type(found) is bool for found in features["simd"].values())
    features.clear()
    assert safelight.features() != {}


def test_the_version_is_that_of_the_package() -> None:
    assert safelight.__version__ == version("safelight")


def test_every_dispatch_of_ours_is_told() -> None:
    rust = Path(__file__).parents[1] / "rust"
    sources = [path.read_text() for path in rust.glob("*/src/**/*.rs")]
    names = {
        name
        for source in sources
        for name in re.findall(
            r'(?:is_x86_feature_detected!\(|target_feature\(enable = )"(.+?)"', source
        )
    }
    assert names, "found none: the pattern is out of date"
    if platform.machine() in ("x86_64", "AMD64"):
        simd = safelight.features()["simd"]
        assert names <= simd.keys()
        # Of libraries: sha2, blake3, libdeflate.
        assert {"sha", "sse4.1", "avx512f", "pclmulqdq"} <= simd.keys()
        flags = Path("/proc/cpuinfo")
        if flags.exists():
            told = set(flags.read_text().split("flags", 1)[1].split("\n", 1)[0].split())
            linux = {"sha": "sha_ni", "sse4.1": "sse4_1"}
            assert simd == {name: linux.get(name, name) in told for name in simd}


def test_a_library_has_a_version_where_it_is_built_in() -> None:
    features = safelight.features()
    for name in LIBRARIES:
        assert features[name] is None or re.fullmatch(r"\d+(\.\d+)+", features[name])
    assert features["libwebp"] is not None
    assert features["libdeflate"] is not None
    is_served = decode_image(encode(Image.new("L", (1, 1)), "JPEG"), DecodeRequest()) is not None
    assert (features["libjpeg-turbo"] is not None) == is_served


@pytest.mark.parametrize("name", SOUND)
def test_no_version_with_known_faults_is_inside(name: str) -> None:
    told = safelight.features()[name]
    if told is None:
        pytest.skip(f"built without {name}")
    assert tuple(map(int, told.split("."))) >= SOUND[name]


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "features")
    assert (status, err) == (0, "")
    assert json.loads(out) == safelight.features()
