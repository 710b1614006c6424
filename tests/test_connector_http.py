"""http(s): well-behaved and hostile servers on loopback, and what each may do to a fetch."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
import threading
import time

import pytest

from loopback import Resolver, Server, fails_as
from safelight import (
    BlockedURLError,
    DownloadBudget,
    FetchError,
    FetchRefusedError,
    MediaConnector,
    MediaRef,
    PayloadTooLargeError,
    SafelightError,
    TransientFetchError,
)
from safelight.media import MediaIO

pytestmark = pytest.mark.timeout(60)

PAYLOAD = bytes(range(256)) * 40


class Bytes(MediaIO[bytes]):
    def load_bytes(self, data: bytes) -> bytes:
        return data


def connector(**options) -> MediaConnector:
    defaults = {"allow_private_addresses": True, "retry_backoff_s": 0.001, "timeout_s": 20}
    return MediaConnector(**{**defaults, **options})


def sync_load(connector: MediaConnector, url: str, **kwargs) -> MediaRef:
    return connector.load_from_url(url, Bytes(), **kwargs)


def async_load(connector: MediaConnector, url: str, **kwargs) -> MediaRef:
    return asyncio.run(connector.load_from_url_async(url, Bytes(), **kwargs))


@pytest.fixture(params=[sync_load, async_load], ids=["sync", "async"])
def load(request):
    return request.param


# --- what a good server may do ---


def test_asks_plainly_and_takes_the_bytes_as_they_are(load):
    with Server(lambda exchange: exchange.answer(PAYLOAD)) as server:
        assert load(connector(), server.url + "a/b?c=d#e").data == PAYLOAD
        (exchange,) = server.exchanges
    assert exchange.path == "/a/b?c=d"
    assert exchange.headers["host"] == f"127.0.0.1:{server.port}"
    assert exchange.headers["accept-encoding"] == "identity"
    assert not {"cookie", "authorization", "referer", "range"} & set(exchange.headers)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 103 Hint\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 203 Yes\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nhello and more",
    ],
)
def test_every_framing_of_a_body(load, answer):
    with Server(lambda exchange: exchange.send(answer)) as server:
        assert load(connector(), server.url).data == b"hello"


def test_follows_redirects_up_to_the_limit(load):
    def answer(exchange):
        left = int(exchange.path[1:])
        exchange.redirect(f"/{left - 1}") if left else exchange.answer(b"there")

    with Server(answer) as server:
        assert load(connector(max_redirects=3), server.url + "3").data == b"there"
        with pytest.raises(FetchRefusedError, match="more than 3 redirects"):
            load(connector(max_redirects=3), server.url + "4")
        assert len(server.exchanges) == 8


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S", "307 T", "308 P"])
def test_every_kind_of_redirect(load, status):
    def answer(exchange):
        if exchange.path == "/":
            exchange.redirect(server.url + "x?y", status)
        else:
            exchange.answer(exchange.path.encode())

    with Server(answer) as server:
        assert load(connector(), server.url).data == b"/x?y"


def test_environment_proxies_and_netrc_are_not_heeded(load, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login secret password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Server(lambda exchange: exchange.answer(b"x")) as server:
        assert load(connector(), server.url).data == b"x"
        assert "authorization" not in server.exchanges[0].headers


# --- where a fetch may not go ---


def test_every_hop_is_held_to_the_allow_list(load):
    with Server(lambda exchange: exchange.answer(b"secret")) as inside:
        target = f"http://other.example:{inside.port}/"
        with Server(lambda exchange: exchange.redirect(target)) as server:
            network = Resolver({"a.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]})
            options = {"network": network, "allowed_media_domains": ["a.example"]}
            url = f"http://a.example:{server.port}/"
            with pytest.raises(BlockedURLError, match="allowed_media_domains") as caught:
                load(connector(**options), url)
        assert inside.connections == 0
    assert network.resolved == ["a.example"]
    fails_as(caught.value, "example")


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::1]/",
        "http://0.0.0.0/",
        "http://metadata.example/",
        "//metadata.example/",
        "http://224.0.0.1/",
        "http://0x7f000001/",
        "http://user:secret@127.0.0.1/",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
    ],
)
def test_a_redirect_to_a_forbidden_place_reaches_nobody(load, location):
    network = Resolver({"metadata.example": ["169.254.169.254"]})
    with Server(lambda exchange: exchange.redirect(location)) as server:
        with pytest.raises(BlockedURLError) as caught:
            load(connector(network=network), server.url)
        assert len(server.exchanges) == 1
    assert network.dialed == ["127.0.0.1"]
    fails_as(caught.value, "169.254", "secret", "metadata", "passwd")


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["8.8.8.8", "127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["::1"],
        ["fe80::1%lo"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
    ],
)
def test_a_name_with_any_forbidden_address_is_not_dialed(load, answers):
    network = Resolver({"a.example": answers})
    with pytest.raises(BlockedURLError, match="not allowed") as caught:
        load(connector(network=network, allow_private_addresses=False), "http://a.example/")
    assert network.dialed == []
    fails_as(caught.value, *answers, "example")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost./",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://127.0.0.%31/",
        "http://127.0.0.1:6666\\@1.1.1.1/x.png",
        "http://0/",
    ],
)
def test_loopback_in_any_spelling_is_refused_without_the_option(load, url):
    network = Resolver({"localhost": ["127.0.0.1", "::1"]})
    with pytest.raises(BlockedURLError):
        load(connector(network=network, allow_private_addresses=False), url)
    assert network.dialed == []


def test_a_public_name_is_dialed_by_the_address_that_was_judged(load):
    network = Resolver({"a.example": ["8.8.8.8", "2606:4700::1111"]})
    with pytest.raises(FetchError, match="after 2 attempts") as caught:
        load(
            connector(network=network, allow_private_addresses=False, retries=1),
            "http://a.example/",
        )
    assert type(caught.value) is TransientFetchError
    assert network.dialed == ["8.8.8.8", "2606:4700::1111"] * 2
    assert network.resolved == ["a.example"] * 2
    fails_as(caught.value, "8.8.8.8", "example")


def test_a_name_that_is_rebound_is_judged_each_time_it_is_resolved(load):
    def answer(exchange):
        exchange.send(b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with Server(answer) as server:
        network = Resolver({"a.example": [["127.0.0.1"], ["169.254.169.254"]]})
        with pytest.raises(BlockedURLError):
            load(connector(network=network), f"http://a.example:{server.port}/")
        assert server.connections == 1
    assert network.dialed == ["127.0.0.1"]
    assert network.resolved == ["a.example"] * 2


def test_an_address_that_does_not_answer_is_followed_by_the_next(load):
    with Server(lambda exchange: exchange.answer(b"x")) as server:
        network = Resolver({"a.example": ["10.0.0.9", "127.0.0.1"]})
        assert load(connector(network=network), f"http://a.example:{server.port}/").data == b"x"
    assert network.dialed == ["10.0.0.9", "127.0.0.1"]


def test_an_address_that_swallows_packets_does_not_take_the_others_time(load):
    class Swallows(Resolver):
        async def connect(self, address, port):
            if address != "127.0.0.1":
                await asyncio.sleep(1000)
            return await super().connect(address, port)

    with Server(lambda exchange: exchange.answer(b"x")) as server:
        network = Swallows({"a.example": ["10.0.0.9", "127.0.0.1"]})
        assert load(connector(network=network), f"http://a.example:{server.port}/").data == b"x"


def test_a_name_that_does_not_exist_is_a_transient_failure(load):
    network = Resolver()
    with pytest.raises(FetchError, match="resolved, after 3 attempts") as caught:
        load(connector(network=network, retries=2), "http://a.example/")
    assert type(caught.value) is TransientFetchError
    assert network.resolved == ["a.example"] * 3


def test_private_and_strict_connectors_share_no_connection(load):
    with Server(lambda exchange: exchange.answer(b"x")) as server:
        load(connector(), server.url)
        with pytest.raises(BlockedURLError):
            load(connector(allow_private_addresses=False), server.url)
        assert len(server.exchanges) == 1


# --- what a bad server may not do ---


@pytest.mark.parametrize(
    ("status", "kind", "attempts"),
    [
        ("404 Not Found", FetchRefusedError, 1),
        ("401 No", FetchRefusedError, 1),
        ("403 No", FetchRefusedError, 1),
        ("410 Gone", FetchRefusedError, 1),
        ("204 Nothing", FetchRefusedError, 1),
        ("206 Part", FetchRefusedError, 1),
        ("300 Many", FetchRefusedError, 1),
        ("304 Same", FetchRefusedError, 1),
        ("408 Timeout", TransientFetchError, 3),
        ("429 Slow down", TransientFetchError, 3),
        ("500 Oops", TransientFetchError, 3),
        ("503 Later", TransientFetchError, 3),
    ],
)
def test_answers_that_are_no_payload(load, status, kind, attempts):
    with Server(lambda exchange: exchange.answer(b"", status)) as server:
        with pytest.raises(FetchError, match=status[:3]) as caught:
            load(connector(retries=2), server.url)
        assert len(server.exchanges) == attempts
    assert type(caught.value) is kind
    fails_as(caught.value)


def test_a_transient_failure_is_mended_by_a_retry(load):
    count = itertools.count()

    def answer(exchange):
        number = next(count)
        if number == 0:
            exchange.answer(b"", "503 Later")
        elif number == 1:
            exchange.reset()
        elif number == 2:
            exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhal")
            time.sleep(0.1)  # a reset that overtakes unread bytes can look like an end
            exchange.reset()
        else:
            exchange.answer(PAYLOAD)

    budget = DownloadBudget(len(PAYLOAD))
    with Server(answer) as server:
        assert load(connector(download_budget=budget), server.url).data == PAYLOAD
        assert len(server.exchanges) == 4
    assert budget.used_bytes == len(PAYLOAD)


def test_retry_after_beyond_the_deadline_ends_the_fetch_at_once(load):
    def answer(exchange):
        exchange.answer(b"", "503 Later", {"Retry-After": "3600"})

    with Server(answer) as server:
        with pytest.raises(FetchError, match=r"longer than 30 s"):
            load(connector(timeout_s=30), server.url)
        assert len(server.exchanges) == 1


def test_a_redirect_without_a_place_is_final(load):
    with Server(lambda exchange: exchange.answer(b"", "302 Found")) as server:
        with pytest.raises(FetchRefusedError, match="without a location"):
            load(connector(), server.url)
        assert len(server.exchanges) == 1


@pytest.mark.parametrize("location", ["", " "])
def test_an_empty_location_is_no_place(load, location):
    with Server(lambda exchange: exchange.redirect(location)) as server:
        with pytest.raises(FetchRefusedError, match="without a location"):
            load(connector(), server.url)
        assert len(server.exchanges) == 1


def test_a_redirect_may_need_escapes_as_a_first_hop_may(load):
    def answer(exchange):
        exchange.redirect("/my image.png") if exchange.path == "/" else exchange.answer(b"x")

    with Server(answer) as server:
        for path in ("", "my image.png"):
            assert load(connector(), server.url + path).data == b"x"
        paths = [exchange.path for exchange in server.exchanges]
    assert paths == ["/", "/my%20image.png", "/my%20image.png"]


def test_a_redirect_loop_ends(load):
    with Server(lambda exchange: exchange.redirect(exchange.path)) as server:
        with pytest.raises(FetchRefusedError, match="redirects"):
            load(connector(max_redirects=5), server.url)
        assert len(server.exchanges) == 6


def test_a_body_shorter_than_announced_is_an_error(load):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(100)
    budget = DownloadBudget(10_000)
    with Server(lambda exchange: exchange.send(answer)) as server:
        with pytest.raises(FetchRefusedError, match="ended early: 100 of 1000 bytes"):
            load(connector(download_budget=budget), server.url)
        assert len(server.exchanges) == 1
    assert budget.used_bytes == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhal",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\na",
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000,
        b"",
    ],
)
def test_what_is_not_http_is_an_error_after_retries(load, answer):
    with (
        Server(lambda exchange: exchange.send(answer)) as server,
        pytest.raises(FetchError, match="after 2 attempts") as caught,
    ):
        load(connector(retries=1), server.url)
    assert type(caught.value) is TransientFetchError
    fails_as(caught.value)


def test_a_reset_in_the_body_is_an_error(load):
    def answer(exchange):
        exchange.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + bytes(1000))
        time.sleep(0.05)
        exchange.reset()

    with Server(answer) as server, pytest.raises(FetchError) as caught:
        load(connector(retries=0), server.url)
    assert type(caught.value) is TransientFetchError


def test_a_compressed_body_is_refused_unread(load):
    bomb = gzip.compress(bytes(50_000_000))

    def answer(exchange):
        exchange.answer(bomb, headers={"Content-Encoding": "gzip"})

    with Server(answer) as server, pytest.raises(FetchRefusedError, match="compressed"):
        load(connector(), server.url)


def test_an_announced_length_over_the_cap_is_refused_by_the_head(load):
    def answer(exchange):
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n")
        exchange.wait_for_the_end(20)

    with Server(answer) as server, pytest.raises(PayloadTooLargeError) as caught:
        load(connector(max_bytes=1000), server.url)
    assert (caught.value.limit, caught.value.actual) == (1000, 1001)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_endless_body_is_cut_off_with_an_error(load, is_chunked):
    def answer(exchange):
        encoding = "Transfer-Encoding: chunked" if is_chunked else "Connection: close"
        exchange.send(f"HTTP/1.1 200 OK\r\n{encoding}\r\n\r\n".encode())
        piece = bytes(4096)
        while True:
            exchange.send(b"1000\r\n" + piece + b"\r\n" if is_chunked else piece)

    with Server(answer) as server:
        with pytest.raises(PayloadTooLargeError) as caught:
            load(connector(max_bytes=100_000), server.url)
        assert caught.value.limit == 100_000
        assert len(server.exchanges) == 1


def test_the_cap_is_exact_for_a_body_without_a_length(load):
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + bytes(1000)
    with Server(lambda exchange: exchange.send(answer)) as server:
        assert len(load(connector(max_bytes=1000), server.url).data) == 1000
        with pytest.raises(PayloadTooLargeError):
            load(connector(max_bytes=999), server.url)


def test_an_endless_body_ends_at_the_request_s_budget(load):
    def answer(exchange):
        exchange.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            exchange.send(bytes(4096))

    budget = DownloadBudget(50_000)
    with Server(answer) as server, pytest.raises(PayloadTooLargeError):
        load(connector(download_budget=budget), server.url)
    assert budget.used_bytes == 0


def test_endless_interim_answers_are_cut_off(load):
    def answer(exchange):
        while True:
            exchange.send(b"HTTP/1.1 100 C\r\n\r\n" * 100)

    with Server(answer) as server, pytest.raises(FetchError, match="failed, after 2 attempts"):
        load(connector(retries=1), server.url)


def test_a_flood_of_tiny_chunks_leaves_the_loop_to_others():
    def answer(exchange):
        exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            exchange.send(b"1\r\nx\r\n" * 2000)

    async def main():
        steps = 0

        async def step():
            nonlocal steps
            while True:
                await asyncio.sleep(0)
                steps += 1

        stepping = asyncio.create_task(step())
        await asyncio.sleep(0)
        with pytest.raises(FetchError, match=r"longer than 0.7 s"):
            await connector(timeout_s=0.7).load_from_url_async(server.url, Bytes())
        stepping.cancel()
        return steps

    with Server(answer) as server:
        # One read brings ten thousand chunks; without a pause between them it would be a few.
        assert asyncio.run(main()) > 40


@pytest.mark.parametrize("where", ["nothing", "head", "body", "chunks", "redirects"])
def test_a_slow_drip_ends_at_the_deadline(load, where):
    def answer(exchange):
        is_over = exchange.wait_for_the_end
        if where == "head":
            exchange.send(b"HTTP/1.1 200 OK\r\nX: ")
        elif where == "body":
            exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        elif where == "chunks":
            exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        elif where == "redirects":
            is_over(0.1)
            exchange.redirect("/")
            return
        while not is_over(0.05):
            if where != "nothing":
                exchange.send(b"1\r\nx\r\n" if where == "chunks" else b"x")

    with Server(answer) as server:
        started = time.monotonic()
        with pytest.raises(FetchError, match=r"longer than 0.6 s") as caught:
            load(connector(timeout_s=0.6, max_redirects=1000), server.url)
        # The deadline, not one read: a drip that came in time each time would go on for hours.
        assert time.monotonic() - started < 10
    assert type(caught.value) is TransientFetchError
    fails_as(caught.value)


def test_a_server_that_does_not_accept_ends_at_the_deadline(load):
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
    try:
        with pytest.raises(FetchError):
            load(connector(timeout_s=0.5), f"http://127.0.0.1:{listener.getsockname()[1]}/")
    finally:
        for opened in (listener, *fillers):
            opened.close()


def test_a_name_look_up_that_hangs_ends_at_the_deadline(load):
    is_over = threading.Event()

    class Hangs(Resolver):
        def resolve(self, host, port):
            is_over.wait(30)
            raise OSError

    try:
        started = time.monotonic()
        with pytest.raises(FetchError, match=r"longer than 0.3 s"):
            load(connector(network=Hangs(), timeout_s=0.3), "http://a.example/")
        # The loop ends too, although the look-up does not.
        assert time.monotonic() - started < 10
    finally:
        is_over.set()


def test_nobody_listens(load):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(FetchError, match="after 2 attempts") as caught:
        load(connector(retries=1), f"http://127.0.0.1:{port}/")
    assert type(caught.value) is TransientFetchError
    fails_as(caught.value, str(port))


def test_every_error_is_one_of_ours_and_tells_nothing(load):
    """The forms of an answer, cut at every place: never another exception, never an address."""
    whole = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
    )
    answers = [form[:cut] for form in whole for cut in range(0, len(form), 3)]
    left = iter(answers)
    with Server(lambda exchange: exchange.send(next(left))) as server:
        for _ in answers:
            try:
                load(connector(retries=0), server.url)
            except SafelightError as error:
                fails_as(error)
