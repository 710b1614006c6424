"""https: the name in the URL is the name that the certificate must have."""

from __future__ import annotations

import asyncio
import ssl
import time

import pytest
import trustme

from loopback import Resolver, Server, fails_as
from safelight import FetchError, FetchRefusedError, MediaConnector, TransientFetchError
from safelight.media import MediaIO

pytestmark = pytest.mark.timeout(60)


class Bytes(MediaIO[bytes]):
    def load_bytes(self, data: bytes) -> bytes:
        return data


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture(params=["sync", "async"])
def load(request):
    def load(url, context, **options):
        network = Resolver({"a.example": ["127.0.0.1"]}, ssl_context=context)
        connector = MediaConnector(
            network=network,
            allow_private_addresses=True,
            retry_backoff_s=0.001,
            **{"timeout_s": 20, **options},
        )
        if request.param == "sync":
            return connector.load_from_url(url, Bytes()).data
        return asyncio.run(connector.load_from_url_async(url, Bytes())).data

    return load


def test_the_dialed_address_speaks_for_the_name(load, authority):
    names = []
    context = server_context(authority, "a.example")
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    payload = bytes(300_000)
    with Server(lambda exchange: exchange.answer(payload), ssl_context=context) as server:
        url = f"https://a.example.:{server.port}/"
        assert load(url, client_context(authority)) == payload
        assert server.exchanges[0].headers["host"] == f"a.example:{server.port}"
    assert names == ["a.example"]


def test_a_large_body_comes_whole(load, authority):
    payload = bytes(range(256)) * 80_000
    context = server_context(authority, "a.example")
    with Server(lambda exchange: exchange.answer(payload), ssl_context=context) as server:
        for _ in range(2):
            assert load(f"https://a.example:{server.port}/", client_context(authority)) == payload


def test_an_address_can_have_a_certificate_too(load, authority):
    context = server_context(authority, "127.0.0.1")
    with Server(lambda exchange: exchange.answer(b"x"), ssl_context=context) as server:
        assert load(server.url, client_context(authority)) == b"x"


@pytest.mark.parametrize("fault", ["another name", "unknown authority"])
def test_a_certificate_that_does_not_vouch_for_the_name_is_final(load, authority, fault):
    names = ["b.example"] if fault == "another name" else ["a.example"]
    context = server_context(authority, *names)
    trusted = authority if fault == "another name" else trustme.CA()
    with Server(lambda exchange: exchange.answer(b"x"), ssl_context=context) as server:
        with pytest.raises(FetchRefusedError, match="certificate") as caught:
            load(f"https://a.example:{server.port}/", client_context(trusted))
        assert server.connections == 1
        assert server.exchanges == []
    fails_as(caught.value, "example")


def test_a_server_without_tls_is_a_transient_failure(load, authority):
    greeting = b"220 mail.example ESMTP\r\n"
    with (
        Server(lambda exchange: exchange.answer(), greeting=greeting) as server,
        pytest.raises(FetchError, match="TLS handshake failed, after 2") as caught,
    ):
        load(f"https://127.0.0.1:{server.port}/", client_context(authority), retries=1)
    assert type(caught.value) is TransientFetchError


def test_a_handshake_that_does_not_come_ends_at_the_deadline(load, authority):
    def answer(exchange):
        exchange.wait_for_the_end(20)

    started = time.monotonic()
    with Server(answer) as server, pytest.raises(FetchError, match=r"longer than 0.4 s"):
        load(f"https://127.0.0.1:{server.port}/", client_context(authority), timeout_s=0.4)
    assert time.monotonic() - started < 10


def test_a_redirect_may_change_between_http_and_https(load, authority):
    context = server_context(authority, "a.example")
    with Server(lambda exchange: exchange.answer(b"x"), ssl_context=context) as secure:
        target = f"https://a.example:{secure.port}/"
        with Server(lambda exchange: exchange.redirect(target)) as server:
            assert load(server.url, client_context(authority)) == b"x"


def test_a_tls_connection_that_is_cut_is_no_whole_body(load, authority):
    context = server_context(authority, "a.example")
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(100)
    with (
        Server(lambda exchange: exchange.send(answer), ssl_context=context) as server,
        pytest.raises(FetchError),
    ):
        load(f"https://a.example:{server.port}/", client_context(authority), retries=0)
