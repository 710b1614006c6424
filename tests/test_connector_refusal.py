"""Early refusal: what a decoder refuses by its first bytes is not downloaded."""

from __future__ import annotations

import asyncio
import io
import time

import pytest
from PIL import Image

from loopback import Exchange, Server
from safelight import (
    DownloadBudget,
    FetchRefusedError,
    HeaderError,
    ImageMediaIO,
    LimitError,
    MediaConnector,
    NeedMoreBytes,
    UnsupportedMediaError,
)
from safelight.media import MediaIO

pytestmark = pytest.mark.timeout(60)

REST = bytes(20 << 20)
# What may leave the server before a refusal reaches it; a busy machine takes its time.
FEW = 2 << 20


def image(kind: str, size: tuple[int, int] = (300, 300)) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise(size, 64).convert("RGB").save(stream, kind)
    return stream.getvalue()


def slowly(data: bytes):
    """An answer that leaves in pieces, each as the client can have seen the last one."""

    def answer(exchange: Exchange) -> None:
        exchange.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        for start in range(0, len(data), 4096):
            exchange.send(data[start : start + 4096])
            time.sleep(0.002)

    return answer


def sync_load(connector, url, *media_ios):
    return connector.load_refs_from_url(url, media_ios)


def async_load(connector, url, *media_ios):
    return asyncio.run(connector.load_refs_from_url_async(url, media_ios))


@pytest.fixture(params=[sync_load, async_load], ids=["sync", "async"])
def load(request):
    return request.param


def connector(**options) -> MediaConnector:
    return MediaConnector(allow_private_addresses=True, timeout_s=30, **options)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_an_image_over_the_pixel_limit_is_refused_after_its_first_kilobytes(load, kind):
    decoder = ImageMediaIO(max_image_pixels=50_000)
    budget = DownloadBudget(100 << 20)
    with Server(slowly(image(kind) + REST)) as server:
        with pytest.raises(LimitError) as caught:
            load(connector(download_budget=budget), server.url, decoder)
        wait_until_idle(server)
        assert server.sent_bytes < FEW
        assert len(server.exchanges) == 1
    assert caught.value.actual == 90_000
    assert budget.used_bytes == 0


def wait_until_idle(server: Server) -> None:
    """Wait until the server has noticed that its client is gone."""
    last = -1
    while last != server.sent_bytes:
        last = server.sent_bytes
        time.sleep(0.05)


def test_a_format_that_is_not_served_is_refused_early(load):
    with Server(slowly(image("PNG") + REST)) as server:
        with pytest.raises(UnsupportedMediaError):
            load(connector(), server.url, ImageMediaIO(formats=["JPEG"]))
        wait_until_idle(server)
        assert server.sent_bytes < FEW


def test_a_page_in_place_of_an_image_is_refused_early(load):
    page = b"<!doctype html><title>Not found</title>" + b"<p>Sorry.</p>" * (1 << 20)
    with Server(slowly(page)) as server:
        with pytest.raises((HeaderError, UnsupportedMediaError)):
            load(connector(), server.url, ImageMediaIO())
        wait_until_idle(server)
        assert server.sent_bytes < FEW


class Judge(MediaIO[bytes]):
    """A decoder that says what it is asked, and can refuse."""

    def __init__(self, verdicts):
        self.verdicts = iter(verdicts)
        self.sizes = []

    def load_bytes(self, data):
        return data

    def check_prefix(self, data):
        self.sizes.append(len(data))
        verdict = next(self.verdicts, None)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


def test_no_media_at_all_is_refused_early(load):
    with Server(slowly(b"<!doctype html>" + REST)) as server:
        with pytest.raises(HeaderError, match="no media"):
            load(connector(), server.url, Judge([HeaderError("no media")]))
        wait_until_idle(server)
        assert server.sent_bytes < FEW


def test_any_of_several_decoders_can_refuse(load):
    with Server(slowly(REST)) as server:
        with pytest.raises(HeaderError):
            load(
                connector(),
                server.url,
                Judge([]),
                Judge([None, HeaderError("no")]),
                Judge([HeaderError("no")]),
            )
        wait_until_idle(server)
        assert server.sent_bytes < FEW


def test_a_verdict_is_asked_for_until_it_is_given_and_no_longer(load):
    judge = Judge(
        [NeedMoreBytes(), NeedMoreBytes(5000), NeedMoreBytes(), None, HeaderError("never")]
    )
    data = bytes(200_000)
    with Server(slowly(data)) as server:
        (ref,) = load(connector(), server.url, judge)
    assert ref.data == data
    assert len(judge.sizes) == 4
    first, second, third, fourth = judge.sizes
    assert second >= 2 * first
    assert third >= 5000
    assert fourth >= 2 * third


def test_a_decoder_that_never_decides_is_asked_seldom_and_shown_little(load):
    judge = Judge([NeedMoreBytes()] * 1000)
    with Server(lambda exchange: exchange.answer(REST)) as server:
        (ref,) = load(connector(), server.url, judge)
    assert len(ref.data) == len(REST)
    assert max(judge.sizes) <= 1 << 20
    assert len(judge.sizes) <= 21


def test_a_prefix_beyond_what_is_shown_waits_for_the_whole(load):
    judge = Judge([NeedMoreBytes(15 << 20), HeaderError("never")])
    with Server(lambda exchange: exchange.answer(REST)) as server:
        assert len(load(connector(), server.url, judge)[0].data) == len(REST)
    assert len(judge.sizes) == 1


def test_a_refusal_is_not_retried_and_the_next_fetch_is_served(load):
    payload = image("PNG")
    with Server(lambda exchange: exchange.answer(payload)) as server:
        for _ in range(3):
            with pytest.raises(LimitError):
                load(connector(), server.url, ImageMediaIO(max_image_pixels=10))
        assert load(connector(), server.url, ImageMediaIO())[0].data == payload
        assert len(server.exchanges) == 4


def test_an_answer_that_is_no_payload_is_not_shown_to_a_decoder(load):
    judge = Judge([HeaderError("never")])
    with (
        Server(lambda exchange: exchange.answer(b"<html>", "404 No")) as server,
        pytest.raises(FetchRefusedError),
    ):
        load(connector(), server.url, judge)
    assert judge.sizes == []
