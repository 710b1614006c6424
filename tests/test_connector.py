"""The connector: every scheme to refs, under one request's rules, off the event loop."""

from __future__ import annotations

import asyncio
import base64
import io
import subprocess
import sys
import threading

import pytest
from PIL import Image

from loopback import Server, fails_as
from safelight import (
    BlockedURLError,
    ConfigurationError,
    DecodedBudget,
    DecodeError,
    DownloadBudget,
    FetchError,
    HeaderError,
    ImageMediaIO,
    LimitError,
    MediaConnector,
    MediaError,
    MediaRef,
    PayloadTooLargeError,
    RequestError,
    SafelightError,
    TransientFetchError,
)
from safelight.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnectorRegistry
from safelight.media import MediaIO

pytestmark = pytest.mark.timeout(60)


def png(size: tuple[int, int] = (5, 3), color: str = "red") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, "PNG")
    return stream.getvalue()


def data_url(payload: bytes, header: str = "data:image/png;base64,") -> str:
    return header + base64.b64encode(payload).decode()


def fetch(connector: MediaConnector, url: str, media_io=None) -> MediaRef:
    """Fetch in both ways and hold them to the same outcome."""
    outcomes = []
    for call in (
        lambda: connector.fetch_image(url, media_io),
        lambda: asyncio.run(connector.fetch_image_async(url, media_io)),
    ):
        try:
            outcomes.append(call())
        except SafelightError as error:
            outcomes.append(error)
    one, other = outcomes
    assert type(one) is type(other)
    if isinstance(one, Exception):
        assert str(one) == str(other)
        raise one
    assert one.key == other.key
    return other


class Recorder(MediaIO[bytes]):
    """A decoder that keeps what it was given and where it ran."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.payloads: list[bytes] = []
        self.threads: list[int] = []

    def get_max_bytes(self) -> int | None:
        return self.max_bytes

    def load_bytes(self, data: bytes) -> bytes:
        return data

    def load_bytes_ref(self, data: bytes) -> MediaRef[bytes]:
        self.payloads.append(data)
        self.threads.append(threading.get_ident())
        return super().load_bytes_ref(data)


# --- every scheme ---


def test_every_scheme_brings_the_same_ref(tmp_path):
    payload = png()
    (tmp_path / "x").write_bytes(payload)
    connector = MediaConnector(
        allowed_local_media_path=tmp_path, allow_private_addresses=True, something_else=1
    )
    expected = ImageMediaIO().load_bytes_ref(payload)
    with Server(lambda exchange: exchange.answer(payload)) as server:
        for url in (data_url(payload), f"file://{tmp_path}/x", server.url):
            ref = fetch(connector, url)
            assert ref.key == expected.key
            assert ref.data == payload
            assert not ref.is_decoded
            assert ref.decode().getpixel((4, 2)) == (255, 0, 0)


@pytest.mark.parametrize("header", ["DATA:;base64,", "Data:image/x;a=b;base64,", "data:;base64,"])
def test_data_urls_in_any_dress(header):
    assert fetch(MediaConnector(), data_url(png(), header)).data == png()


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("data:image/png;base64", BlockedURLError, "missing ','"),
        ("data:", BlockedURLError, "missing ','"),
        ("data:image/png,AAAA", BlockedURLError, "not base64"),
        ("data:base64,AAAA", BlockedURLError, "not base64"),
        ("data:image/png;BASE64,AAAA", BlockedURLError, "not base64"),
        ("data:image/png;base64;x=y,AAAA", BlockedURLError, "not base64"),
        ("data:image/png;base64,AA\nAA", DecodeError, "line break at position 2"),
        ("data:image/png;base64,AAA", DecodeError, "missing padding"),
        ("data:image/png;base64,AA==,", DecodeError, "stray character at position 4"),
        ("file:///etc/passwd", BlockedURLError, "no allowed_local_media_path"),
        ("ftp://example.com/x", BlockedURLError, "scheme"),
        ("//x/y", BlockedURLError, "scheme"),
        ("/etc/passwd", BlockedURLError, "scheme"),
        ("x.png", BlockedURLError, "scheme"),
        ("", BlockedURLError, "scheme"),
        ("http:", BlockedURLError, "no host"),
        ("http\u200b://a", BlockedURLError, "scheme"),
        (None, BlockedURLError, "must be str"),
        (b"data:image/png;base64,AAAA", BlockedURLError, "must be str"),
    ],
)
def test_a_malformed_url_is_refused_in_words(url, kind, message):
    with pytest.raises(kind, match=message) as caught:
        fetch(MediaConnector(), url)
    assert isinstance(caught.value, ValueError)
    fails_as(caught.value, "AAAA", "passwd", "example")


def test_several_decoders_share_one_read():
    requests = []

    def answer(exchange):
        requests.append(exchange)
        exchange.answer(png())

    connector = MediaConnector(allow_private_addresses=True)
    decoders = [ImageMediaIO(), ImageMediaIO(image_mode="L")]
    with Server(answer) as server:
        for url in (server.url, data_url(png())):
            for refs in (
                connector.load_refs_from_url(url, decoders),
                asyncio.run(connector.load_refs_from_url_async(url, decoders)),
            ):
                assert [ref.decode().mode for ref in refs] == ["RGB", "L"]
                assert refs[0].data is refs[1].data
                assert refs[0].key != refs[1].key
    assert len(requests) == 2


def test_the_strictest_of_several_maxima_holds():
    connector = MediaConnector(max_bytes=100)
    decoders = [Recorder(), Recorder(max_bytes=5), Recorder(max_bytes=1000)]
    assert len(connector.load_refs_from_url(data_url(b"12345"), decoders)) == 3
    with pytest.raises(PayloadTooLargeError):
        connector.load_refs_from_url(data_url(b"123456"), decoders)


def test_the_connector_s_own_maximum_bounds_a_laxer_decoder():
    with pytest.raises(PayloadTooLargeError):
        MediaConnector(max_bytes=10).load_from_url(data_url(bytes(11)), Recorder(max_bytes=1000))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 6])
def test_max_bytes_is_exact(size, tmp_path):
    payload = bytes(size)
    (tmp_path / "x").write_bytes(payload)
    with Server(lambda exchange: exchange.answer(payload)) as server:
        for url in (data_url(payload), f"file://{tmp_path}/x", server.url):
            options = {"allowed_local_media_path": tmp_path, "allow_private_addresses": True}
            exact = MediaConnector(max_bytes=size, **options)
            assert exact.load_from_url(url, Recorder()).data == payload
            if size:
                with pytest.raises(PayloadTooLargeError):
                    MediaConnector(max_bytes=size - 1, **options).load_from_url(url, Recorder())


def test_a_decoder_with_its_own_reading_of_base64_gets_the_text():
    class Frames(Recorder):
        def load_base64_ref(self, media_type: str, data: str) -> MediaRef[bytes]:
            return self.load_bytes_ref(f"{media_type}|{data}".encode())

    url = "data:video/jpeg;base64,AAAA,BBBB"
    assert MediaConnector().load_from_url(url, Frames()).data == b"video/jpeg|AAAA,BBBB"


# --- budgets ---


def test_a_request_s_downloads_are_summed_over_every_scheme(tmp_path):
    payload = bytes(600)
    (tmp_path / "x").write_bytes(payload)
    with Server(lambda exchange: exchange.answer(payload)) as server:
        for url in (data_url(payload), f"file://{tmp_path}/x", server.url):
            budget = DownloadBudget(1000)
            connector = MediaConnector(
                allowed_local_media_path=tmp_path,
                allow_private_addresses=True,
                download_budget=budget,
            )
            connector.load_from_url(url, Recorder())
            assert budget.used_bytes == 600
            with pytest.raises(PayloadTooLargeError):
                connector.load_from_url(url, Recorder())
            with pytest.raises(PayloadTooLargeError):
                asyncio.run(connector.load_from_url_async(url, Recorder()))
            assert budget.used_bytes == 600


def test_what_is_refused_after_all_is_given_back(tmp_path):
    class Refuses(Recorder):
        def load_bytes_ref(self, data):
            raise HeaderError("no")

    (tmp_path / "x").write_bytes(bytes(600))
    budget = DownloadBudget(1000)
    connector = MediaConnector(
        allowed_local_media_path=tmp_path, allow_private_addresses=True, download_budget=budget
    )
    with Server(lambda exchange: exchange.answer(bytes(600))) as server:
        for url in (data_url(bytes(600)), f"file://{tmp_path}/x", server.url):
            with pytest.raises(HeaderError):
                connector.load_from_url(url, Refuses())
            with pytest.raises(HeaderError):
                asyncio.run(connector.load_from_url_async(url, Refuses()))
            assert budget.used_bytes == 0
    with pytest.raises(DecodeError):
        connector.load_from_url("data:;base64,AAA*", Recorder())
    assert budget.used_bytes == 0


def test_the_decoder_it_makes_takes_options_and_budget():
    budget = DecodedBudget(100)
    connector = MediaConnector(
        media_io_kwargs={"image": {"image_mode": "L"}}, decoded_budget=budget
    )
    ref = connector.fetch_image(data_url(png()))
    assert budget.used_bytes == 5 * 3 * 4
    assert ref.decode().mode == "L"
    with pytest.raises(LimitError):
        connector.fetch_image(data_url(png()))


@pytest.mark.parametrize("options", [{"no_such": 1}, {"rgba_background_color": (1, 2)}])
def test_a_bad_decoder_option_is_refused_when_the_connector_is_made(options):
    with pytest.raises(ConfigurationError, match="media_io_kwargs"):
        MediaConnector(media_io_kwargs={"image": options})


def test_a_pixel_bomb_is_the_same_error_by_every_scheme(tmp_path):
    payload = png((300, 300))
    (tmp_path / "x").write_bytes(payload)
    connector = MediaConnector(allowed_local_media_path=tmp_path, allow_private_addresses=True)
    with Server(lambda exchange: exchange.answer(payload)) as server:
        for url in (data_url(payload), f"file://{tmp_path}/x", server.url):
            with pytest.raises(LimitError):
                fetch(connector, url, ImageMediaIO(max_image_pixels=1000))


# --- nothing but ours ---


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(ValueError("x"), MediaError), (OSError("x"), MediaError), (KeyError("x"), SafelightError)],
)
def test_a_decoder_s_own_errors_do_not_leak(raised, kind):
    class Breaks(Recorder):
        def load_bytes_ref(self, data):
            raise raised

    for call in (
        lambda: MediaConnector().load_from_url(data_url(b"1"), Breaks()),
        lambda: asyncio.run(MediaConnector().load_from_url_async(data_url(b"1"), Breaks())),
    ):
        with pytest.raises(SafelightError) as caught:
            call()
        assert type(caught.value) is kind
        assert caught.value.__cause__ is not None


def test_without_the_http_client_the_error_says_what_to_install():
    code = """
import sys
for name in ("httpx2", "httpcore2"):
    sys.modules[name] = None
from safelight import ConfigurationError, FetchError, MediaConnector
MediaConnector().fetch_image("data:image/png;base64,AAAA")
MediaConnector(allowed_media_domains=["a.example", "bücher.example"])
for domain in ("a/b", "a b", "127.1", "*.example", "a:80", ""):
    try:
        MediaConnector(allowed_media_domains=[domain])
    except ConfigurationError:
        continue
    raise AssertionError(domain)
try:
    MediaConnector().fetch_image("http://a.example/")
except FetchError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install safelight[http]" in done.stdout


# --- the event loop ---


def test_payloads_are_decoded_probed_and_hashed_off_the_loop(tmp_path):
    (tmp_path / "x").write_bytes(b"12")
    decoder = Recorder()

    async def main(urls):
        connector = MediaConnector(allowed_local_media_path=tmp_path, allow_private_addresses=True)
        for url in urls:
            await connector.load_from_url_async(url, decoder)
        return threading.get_ident()

    with Server(lambda exchange: exchange.answer(b"12")) as server:
        loop_thread = asyncio.run(main([data_url(b"12"), f"file://{tmp_path}/x", server.url]))
    assert len(decoder.threads) == 3
    assert loop_thread not in decoder.threads


def test_a_cancelled_fetch_of_a_data_url_leaves_nothing_charged():
    is_started = threading.Event()
    may_go_on = threading.Event()

    class Waits(Recorder):
        def load_bytes_ref(self, data):
            is_started.set()
            may_go_on.wait(20)
            return super().load_bytes_ref(data)

    async def main():
        task = asyncio.create_task(MediaConnector().load_from_url_async(data_url(b"1"), Waits()))
        await asyncio.to_thread(is_started.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()

    asyncio.run(main())


# --- plug-ins ---


def test_a_plug_in_takes_the_connector_s_place():
    registry = MediaConnectorRegistry()

    @registry.register("mine")
    class Mine(MediaConnector):
        def fetch_image(self, url, media_io=None):
            return self.load_from_url(url.replace("mine:", "data:image/png;base64,"), media_io)

        async def fetch_image_async(self, url, media_io=None):
            url = url.replace("mine:", "data:image/png;base64,")
            return await self.load_from_url_async(url, media_io)

    connector = registry.load("mine", allowed_media_domains=["a.example"], of_another=1)
    url = "mine:" + base64.b64encode(png()).decode()
    assert fetch(connector, url, ImageMediaIO()).data == png()


@pytest.mark.parametrize("modality", ["image", "video", "audio"])
def test_every_modality_has_its_own_method_and_timeout(modality):
    calls = []

    class Mine(MediaConnector):
        """A plug-in in vLLM's shape."""

        def load_from_url(self, url, media_io, *, fetch_timeout=None):
            calls.append(("load", url, fetch_timeout))
            return super().load_from_url(url, media_io, fetch_timeout=fetch_timeout)

        async def load_from_url_async(self, url, media_io, *, fetch_timeout=None):
            calls.append(("load async", url, fetch_timeout))
            return await super().load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)

    timeout_s = {"image": 5.0, "video": 30.0, "audio": 10.0}[modality]
    urls = [data_url(b"1"), data_url(b"2"), data_url(b"1")]
    connector, decoder = Mine(), Recorder()
    getattr(connector, f"fetch_{modality}")(urls[0], decoder)
    assert calls == [("load", urls[0], timeout_s)]
    calls.clear()
    refs = asyncio.run(connector.load_many_async(modality, urls, decoder))
    assert calls == [("load async", url, timeout_s) for url in urls]
    assert [ref.data for ref in refs] == [b"1", b"2", b"1"]
    calls.clear()
    assert len(connector.load_from_urls(urls, decoder)) == 3
    assert calls == [("load", url, None) for url in urls]

    class OneMethod(MediaConnector):
        pass

    async def mine(self, url, media_io=None):
        return f"{modality} {url}"

    setattr(OneMethod, f"fetch_{modality}_async", mine)
    assert asyncio.run(OneMethod().load_many_async(modality, urls, decoder)) == [
        f"{modality} {url}" for url in urls
    ]


def test_a_modality_that_is_none_and_one_without_a_decoder_are_refused():
    for modality, media_io in (("text", Recorder()), ("video", None)):
        with pytest.raises(RequestError):
            asyncio.run(MediaConnector().load_many_async(modality, [], media_io))


def test_the_timeout_of_a_call_stands_in_for_the_connector_s():
    with Server(lambda exchange: exchange.wait_for_the_end(20)) as server:
        connector = MediaConnector(allow_private_addresses=True)
        for name in ("timeout_s", "fetch_timeout"):
            with pytest.raises(TransientFetchError, match=r"longer than 0\.3 s"):
                connector.load_from_url(server.url, Recorder(), **{name: 0.3})


def test_the_registry_knows_the_connector_and_says_what_it_knows():
    assert isinstance(MEDIA_CONNECTOR_REGISTRY.load("http"), MediaConnector)
    with pytest.raises(ConfigurationError, match="http"):
        MEDIA_CONNECTOR_REGISTRY.load("no such")


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_local_media_path": "/no/such/folder"},
        {"allowed_media_domains": ["a/b"]},
        {"allowed_media_domains": "a.example"},
        {"allowed_media_domains": ["a.example", 1]},
        {"allowed_media_domains": 1},
        {"media_io_kwargs": {"imagee": {}}},
        {"media_io_kwargs": {"image": 1}},
        {"media_io_kwargs": [1]},
        {"timeout_s": "5"},
        {"timeout_s": float("nan")},
        {"max_bytes": 1.5},
        {"retries": True},
        {"cache_dir": "/dev/null/x"},
        {"timeout_s": 0},
        {"max_bytes": -1},
        {"retries": -1},
        {"max_redirects": -1},
    ],
)
def test_a_malformed_option_is_refused_when_the_connector_is_made(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        MediaConnector(**options)


def test_making_one_is_cheap():
    code = """
import sys
from safelight.connector import MediaConnector
MediaConnector()
assert not {"httpx2", "httpcore2", "anyio"} & set(sys.modules), "heavy imports"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_caller_may_retry_what_is_transient_and_nothing_else():
    assert issubclass(TransientFetchError, FetchError)
    assert not issubclass(TransientFetchError, ValueError)
    assert not issubclass(BlockedURLError, TransientFetchError)


@pytest.mark.parametrize("raised", [MemoryError(), RuntimeError("x"), TypeError("x")])
def test_the_server_s_own_errors_pass(raised):
    class Breaks(Recorder):
        def load_bytes_ref(self, data):
            raise raised

    with pytest.raises(type(raised)):
        MediaConnector().load_from_url(data_url(b"1"), Breaks())
    with pytest.raises(type(raised)):
        asyncio.run(MediaConnector().load_from_url_async(data_url(b"1"), Breaks()))
