"""Many URLs at once: for each what it would get alone, equal data: URLs sharing their work."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from loopback import Server
from safelight import (
    DecodedBudget,
    DecodeError,
    DownloadBudget,
    FetchRefusedError,
    ImageMediaIO,
    LimitError,
    MediaConnector,
    MediaError,
    MediaRef,
    PayloadTooLargeError,
    SafelightError,
)
from safelight.media import MediaIO

pytestmark = pytest.mark.timeout(60)

Load = Callable[[MediaConnector, list[Any], MediaIO[Any]], list[MediaRef[Any] | Exception]]


def png(color: str = "red", size: tuple[int, int] = (5, 3)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, "PNG")
    return stream.getvalue()


def data_url(payload: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(payload).decode()


@pytest.fixture(params=["sync", "async"])
def load(request: pytest.FixtureRequest) -> Load:
    if request.param == "sync":
        return lambda connector, urls, media_io: connector.load_from_urls(urls, media_io)
    return lambda connector, urls, media_io: asyncio.run(
        connector.load_from_urls_async(urls, media_io)
    )


def test_each_gets_what_it_would_get_alone(load: Load) -> None:
    connector, media_io = MediaConnector(), ImageMediaIO(max_image_pixels=1_000)
    urls: list[Any] = [
        data_url(png()),
        "data:image/png,AAAA",
        data_url(png("blue")),
        "data:image/png;base64,AA=A",
        "file:///etc/hostname",
        data_url(png()),
        "ftp://somewhere/x.png",
        data_url(png(size=(100, 100))),
        b"data:",
        data_url(b"no image"),
        data_url(png("blue")).upper().replace("DATA:IMAGE/PNG;BASE64", "DATA:image/png;base64"),
        "http://localhost/x.png",
        "",
    ]
    outcomes = load(connector, urls, media_io)
    assert len(outcomes) == len(urls)
    for url, outcome in zip(urls, outcomes, strict=True):
        try:
            alone = connector.load_from_url(url, media_io)
        except SafelightError as error:
            assert (type(outcome), str(outcome)) == (type(error), str(error))
        else:
            assert isinstance(outcome, MediaRef)
            assert (outcome.key, outcome.data) == (alone.key, alone.data)
            assert outcome.header == alone.header


def test_equal_urls_share_payload_and_decode_but_not_release(load: Load) -> None:
    url = data_url(png())
    urls = [url, data_url(png("blue")), url[:-1] + url[-1], url]
    first, _, *others = load(MediaConnector(), urls, ImageMediaIO())
    assert isinstance(first, MediaRef)
    for other in others:
        assert isinstance(other, MediaRef)
        assert other is not first
        assert other.data is first.data
    first.release()
    media = [other.decode() for other in others if isinstance(other, MediaRef)]
    assert media[0].tobytes() == media[1].tobytes()


@pytest.mark.parametrize("output", ["pil", "numpy", "torch"])
def test_each_of_equal_urls_has_media_of_its_own(load: Load, output: Any) -> None:
    if output == "torch":
        pytest.importorskip("torch")
    url = data_url(png())
    budget = DecodedBudget(3 * 60)
    media_io = ImageMediaIO(output=output, decoded_budget=budget)
    refs = load(MediaConnector(), [url, url, url, url], media_io)
    media = []
    for ref in refs[:3]:
        assert isinstance(ref, MediaRef)
        media.append(ref.decode())
    if output == "pil":
        media[0].putpixel((0, 0), (1, 2, 3))
        assert [image.getpixel((0, 0)) for image in media[1:]] == [(255, 0, 0)] * 2
    else:
        media[0][:] = 0
        assert [int(array[0, 0, 0]) for array in media[1:]] == [255, 255]
    assert isinstance(refs[3], MediaRef)
    with pytest.raises(LimitError):
        refs[3].decode()


def test_equal_http_urls_are_one_fetch_and_one_charge(load: Load) -> None:
    payload = png()
    budget = DownloadBudget(2 * len(payload))
    connector = MediaConnector(allow_private_addresses=True, download_budget=budget)
    with Server(lambda exchange: exchange.answer(payload)) as server:
        urls = [server.url + name for name in "aabab"]
        refs = load(connector, urls, ImageMediaIO())
        assert sorted(exchange.path for exchange in server.exchanges) == ["/a", "/b"]
    media = []
    for ref in refs:
        assert isinstance(ref, MediaRef)
        assert ref.data is refs[0].data or ref.data is refs[2].data  # type: ignore[union-attr]
        media.append(ref.decode())
    assert len({id(image) for image in media}) == 5
    assert budget.used_bytes == 2 * len(payload)


def test_a_failure_of_equal_urls_is_one_fetch_too_and_each_gets_its_own_error(load: Load) -> None:
    with Server(lambda exchange: exchange.answer(b"", "404 No")) as server:
        connector = MediaConnector(allow_private_addresses=True)
        errors = load(connector, [server.url] * 3, ImageMediaIO())
        assert len(server.exchanges) == 1
    assert [type(error) for error in errors] == [FetchRefusedError] * 3
    assert len({id(error) for error in errors}) == 3


def test_a_hook_that_gives_up_on_one_url_leaves_the_others_theirs() -> None:
    class Impatient(MediaConnector):
        calls = 0

        async def load_from_url_async(self, url: str, media_io: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                async with asyncio.timeout(0.05):
                    return await super().load_from_url_async(url, media_io, **kwargs)
            return await super().load_from_url_async(url, media_io, **kwargs)

    def answer(exchange: Any) -> None:
        exchange.wait_for_the_end(0.3)
        exchange.answer(png())

    with Server(answer) as server:
        connector = Impatient(allow_private_addresses=True)
        first, other = asyncio.run(connector.load_from_urls_async([server.url] * 2, ImageMediaIO()))
        assert len(server.exchanges) == 1
    assert isinstance(first, TimeoutError)
    assert isinstance(other, MediaRef)


def test_a_cancelled_batch_ends_its_fetches() -> None:
    with Server(lambda exchange: exchange.wait_for_the_end(30)) as server:

        async def main() -> None:
            connector = MediaConnector(allow_private_addresses=True)
            urls = [server.url + name for name in "aabc"]
            batch = asyncio.create_task(connector.load_many_async("image", urls))
            await asyncio.sleep(0.2)
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main())


def test_what_a_hook_does_not_ask_for_is_not_charged(load: Load) -> None:
    class Skips(MediaConnector):
        def load_from_url(self, url: str, *args: Any, **kwargs: Any) -> Any:
            if url == skipped:
                raise MediaError("mine")
            return super().load_from_url(url, *args, **kwargs)

        async def load_from_url_async(self, url: str, *args: Any, **kwargs: Any) -> Any:
            if url == skipped:
                raise MediaError("mine")
            return await super().load_from_url_async(url, *args, **kwargs)

    skipped = data_url(png("blue"))
    budget = DownloadBudget(1 << 20)
    good, error = load(Skips(download_budget=budget), [data_url(png()), skipped], ImageMediaIO())
    assert isinstance(good, MediaRef)
    assert str(error) == "mine"
    assert budget.used_bytes == len(good.data)


def test_texts_that_differ_between_the_samples_are_different(load: Load) -> None:
    payloads = [bytearray(png(size=(60, 60))) + bytearray(9_000) for _ in range(2)]
    payloads[1][2_000] = 1
    first, other = load(MediaConnector(), [data_url(bytes(each)) for each in payloads], Bytes())
    assert isinstance(first, MediaRef)
    assert isinstance(other, MediaRef)
    assert first.decode() != other.decode()
    assert first.key != other.key


def test_every_url_is_charged_and_what_fails_is_refunded(load: Load) -> None:
    good, bad = data_url(png()), data_url(png()[:-3])[:-1] + "*"
    nbytes = len(png())
    budget = DownloadBudget(3 * nbytes + 5)
    outcomes = load(MediaConnector(download_budget=budget), [good, bad, good, bad], ImageMediaIO())
    assert [isinstance(outcome, MediaRef) for outcome in outcomes] == [True, False, True, False]
    assert budget.used_bytes == 2 * nbytes
    budget = DownloadBudget(nbytes)
    outcomes = load(MediaConnector(download_budget=budget), [good, good], ImageMediaIO())
    assert isinstance(outcomes[0], MediaRef)
    assert isinstance(outcomes[1], PayloadTooLargeError)
    assert budget.used_bytes == nbytes


def test_what_is_decoded_once_is_charged_once(load: Load) -> None:
    budget = DecodedBudget(4 * 15)
    urls = [data_url(png())] * 3 + [data_url(png("blue"))]
    outcomes = load(MediaConnector(), urls, ImageMediaIO(decoded_budget=budget))
    assert [type(outcome).__name__ for outcome in outcomes] == ["MediaRef"] * 3 + ["LimitError"]
    assert budget.used_bytes == 60


class Bytes(MediaIO[bytes]):
    """A decoder that knows nothing of batches."""

    def load_bytes(self, data: bytes) -> bytes:
        if data == b"bad":
            raise ZeroDivisionError("of the decoder")
        return data

    def load_bytes_ref(self, data: bytes) -> MediaRef[bytes]:
        self.load_bytes(data)
        return super().load_bytes_ref(data)


class Text(Bytes):
    """A decoder that overrides how base64 is read."""

    def load_base64_ref(self, media_type: str, data: str) -> MediaRef[bytes]:
        return self.load_bytes_ref(f"{media_type} {data}".encode())


def test_decoders_of_others_are_asked_for_each(load: Load) -> None:
    good, bad = load(MediaConnector(), [data_url(b"good"), data_url(b"bad")], Bytes())
    assert isinstance(good, MediaRef)
    assert good.decode() == b"good"
    assert isinstance(bad, SafelightError)
    assert "ZeroDivisionError" in str(bad)
    assert isinstance(bad.__cause__, ZeroDivisionError)
    (ref,) = load(MediaConnector(), ["data:text/x;base64,####"], Text())
    assert isinstance(ref, MediaRef)
    assert ref.decode() == b"text/x ####"


def test_a_decoder_that_fails_for_all_at_once_loses_no_charge(load: Load) -> None:
    class Failing(Bytes):
        def load_bytes_refs(self, payloads: Any) -> Any:
            raise ValueError("of the decoder")

    budget = DownloadBudget(1 << 20)
    urls = [data_url(b"one"), data_url(b"two")]
    results = load(MediaConnector(download_budget=budget), urls, Failing())
    assert [type(result) for result in results] == [MediaError] * 2
    with pytest.raises(MediaError):
        MediaConnector(download_budget=budget).load_from_url(urls[0], Failing())
    assert budget.used_bytes == 0


def test_no_decoder_is_no_ref() -> None:
    assert MediaConnector().load_refs_from_url(data_url(b"one"), []) == []


def test_a_subclass_is_asked_for_each_ref(load: Load) -> None:
    class Watermarked(ImageMediaIO):
        def load_bytes_ref(self, data: bytes) -> MediaRef[Any]:
            return super().load_bytes_ref(data).map(lambda image: image.size, mark=1)

    (ref,) = load(MediaConnector(), [data_url(png())], Watermarked())
    assert isinstance(ref, MediaRef)
    assert ref.decode() == (5, 3)


def test_refs_of_payloads_are_those_of_each() -> None:
    media_io = ImageMediaIO(use_image_id=True)
    exif = Image.Exif()
    exif[0xA420] = "x"
    named = io.BytesIO()
    exif.get_ifd(0x8769)[0xA420] = "not an id"
    Image.new("L", (2, 2)).save(named, "PNG", exif=exif)
    payloads = [png(), named.getvalue(), b"", png()]
    for payload, ref in zip(payloads, media_io.load_bytes_refs(payloads), strict=True):
        assert isinstance(ref, MediaRef)
        assert ref.key == media_io.load_bytes_ref(payload).key
    large = ImageMediaIO(max_image_pixels=1).load_bytes_refs([png()])
    assert isinstance(large[0], MediaError)
    assert not isinstance(large[0], DecodeError)


def test_payloads_may_change_once_their_refs_are_made() -> None:
    payload = bytearray(png())
    view = memoryview(png())
    refs = ImageMediaIO().load_bytes_refs([payload, view])  # type: ignore[list-item]
    payload[:] = bytes(len(payload))
    for ref in refs:
        assert isinstance(ref, MediaRef)
        assert ref.key == ImageMediaIO().load_bytes_ref(png()).key
        assert ref.decode().size == (5, 3)


def test_connector_that_overrides_load_from_url_is_asked() -> None:
    class Refusing(MediaConnector):
        def load_from_url(self, *args: Any, **kwargs: Any) -> Any:
            raise MediaError("mine")

        async def load_from_url_async(self, *args: Any, **kwargs: Any) -> Any:
            raise MediaError("mine")

        async def fetch_image_async(self, *args: Any, **kwargs: Any) -> Any:
            raise MediaError("mine")

    connector, urls, media_io = Refusing(), [data_url(png())] * 2, ImageMediaIO()
    for outcomes in (
        connector.load_from_urls(urls, media_io),
        asyncio.run(connector.load_from_urls_async(urls, media_io)),
        asyncio.run(connector.fetch_images_async(urls, media_io)),
    ):
        assert [str(outcome) for outcome in outcomes] == ["mine", "mine"]


def test_texts_alike_are_not_compared_with_all() -> None:
    """Each of many long texts agrees with the others but for its first part."""

    class Counting(str):
        __slots__ = ()
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counting.compared += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    urls = [
        Counting(data_url(number.to_bytes(3, "big") + bytes(600))) for number in [*range(200), 7]
    ]
    outcomes = MediaConnector().load_from_urls(urls, Bytes())
    assert all(isinstance(outcome, MediaRef) for outcome in outcomes)
    assert outcomes[7].data is outcomes[200].data  # type: ignore[union-attr]
    assert Counting.compared < 3 * len(urls)
