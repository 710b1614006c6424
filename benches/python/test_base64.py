"""Base64 of a data URL against pybase64, which needs the payload split off first."""

from __future__ import annotations

import base64

import pybase64
import pytest

from comparison import Comparison
from safelight._safelight import decode_base64

HEADER = "data:image/jpeg;base64,"


def _split_and_decode(url: str) -> bytes:
    return pybase64.b64decode(url.split(",", 1)[1], validate=True)


def _decode(url: str) -> bytes:
    return decode_base64(url, url.find(",") + 1)


@pytest.mark.parametrize("nbytes", [1_000, 200_000, 5_000_000], ids=["1 KB", "200 KB", "5 MB"])
def test_data_url(compare: Comparison, nbytes: int, request: pytest.FixtureRequest) -> None:
    payload = bytes(index * 31 >> 3 & 255 for index in range(nbytes))
    url = HEADER + base64.b64encode(payload).decode()
    compare(
        f"base64, {request.node.callspec.id}",
        ours=_decode,
        baseline=_split_and_decode,
        target=1.3,
        args=(url,),
    )
