"""`decode_base64`: what every strict decoder gives, straight from the buffer."""

from __future__ import annotations

import base64
import re
import threading

import pybase64
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safelight._safelight import decode_base64
from safelight.errors import DecodeError

HEADER = "data:image/png;base64,"


@given(st.binary(max_size=2000))
def test_what_was_encoded_comes_back(data):
    text = base64.b64encode(data).decode()
    assert decode_base64(text) == data
    assert decode_base64(text.encode()) == data
    assert decode_base64(bytearray(text.encode())) == data
    assert decode_base64(HEADER + text, len(HEADER)) == data
    assert decode_base64((HEADER + text).encode(), start=len(HEADER)) == data


@given(
    st.text(
        st.sampled_from("ABCabc019+/=") | st.sampled_from("-_ \n\r\t%*\x00é") | st.characters(),
        max_size=40,
    )
)
def test_accepts_what_pybase64_accepts_and_gives_the_same(text):
    try:
        expected = pybase64.b64decode(text, validate=True)
    except ValueError:
        with pytest.raises(DecodeError):
            decode_base64(text)
    else:
        assert decode_base64(text) == expected


@given(st.binary(min_size=1, max_size=300), st.data())
def test_one_changed_character_is_judged_as_pybase64_judges_it(data, draw):
    text = bytearray(base64.b64encode(data))
    position = draw.draw(st.integers(0, len(text) - 1))
    text[position] = draw.draw(st.integers(0, 255))
    try:
        expected = pybase64.b64decode(bytes(text), validate=True)
    except ValueError:
        with pytest.raises(DecodeError):
            decode_base64(bytes(text))
    else:
        assert decode_base64(bytes(text)) == expected


GOOD = base64.b64encode(b"\xfb\xff\xfe12").decode()  # "+//+MTI=": every special character


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (GOOD.rstrip("="), "base64 has missing padding"),
        (
            GOOD.replace("+", "-").replace("/", "_"),
            "base64 has a character of the url-safe alphabet at position 0",
        ),
        (GOOD[:4] + "\n" + GOOD[4:], "base64 has a line break at position 4"),
        (GOOD + "\r\n", "base64 has a line break at position 8"),
        (GOOD.replace("=", "%3D"), "base64 has percent-encoding at position 7"),
        (GOOD.replace("+", "%2B"), "base64 has percent-encoding at position 0"),
        (GOOD.replace("+", " "), "base64 has a space (a '+' that was lost?) at position 0"),
        (GOOD + "=", "base64 has too much padding at position 8"),
        ("*" + GOOD, "base64 has a stray character at position 0"),
        (GOOD + GOOD, "base64 has data after padding at position 8"),
        ("A" * 76 + "\n" + "A" * 76, "base64 has a line break at position 76"),
        ("A" * 5, "base64 is cut short: its last group has one character"),
        ("AAA\udc80", "base64 has a stray character"),
    ],
)
def test_names_the_fault_and_its_position(text, fault):
    with pytest.raises(DecodeError, match=f"^{re.escape(fault)}$"):
        decode_base64(text)


def test_positions_count_from_the_start_of_the_payload():
    with pytest.raises(DecodeError, match="stray character at position 1"):
        decode_base64("data:é;base64,A*BC", len("data:é;base64,"))


def test_start_counts_characters_also_behind_wide_ones():
    text = "data:日本語;base64,"
    assert decode_base64(text + "YWJj", len(text)) == b"abc"
    assert decode_base64(text, len(text)) == b""
    with pytest.raises(ValueError, match="start is past the end"):
        decode_base64(text, len(text) + 1)


def test_nothing_of_the_payload_is_in_the_error():
    secret = "c2VjcmV0" * 100
    with pytest.raises(DecodeError) as caught:
        decode_base64(secret + "!")
    assert "c2V" not in f"{caught.value} {caught.value!r}"


def test_a_large_payload_comes_back_whole():
    data = bytes(range(256)) * 20_000
    assert decode_base64(base64.b64encode(data).decode()) == data


@pytest.mark.timeout(30)
def test_the_interpreter_runs_while_a_large_text_is_decoded():
    text = "A" * (64 << 20)
    ticks = []
    is_done = threading.Event()

    def tick():
        while not is_done.is_set():
            ticks.append(None)
            is_done.wait(0.0001)

    # Without a release the other thread runs after the whole call at the earliest.
    thread = threading.Thread(target=tick)
    thread.start()
    before = len(ticks)
    decode_base64(text)
    after = len(ticks)
    is_done.set()
    thread.join()
    assert after - before > 3


@pytest.mark.parametrize("data", [None, 1, ["YWJj"]])
def test_takes_text_or_bytes_only(data):
    with pytest.raises(TypeError):
        decode_base64(data)
