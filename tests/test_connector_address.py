"""Addresses and hosts: what may be dialed, and one reading of a URL for check and dial."""

from __future__ import annotations

import unicodedata
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from safelight.connector.address import is_allowed_address, is_canonical_or_no_ipv4
from safelight.connector.http_url import AllowedDomains, join_http_url, parse_http_url
from safelight.errors import BlockedURLError, ConfigurationError

PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700::1111", "2a00:1450:4001::1"]
PRIVATE = [
    "127.0.0.1",
    "127.255.255.254",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "::1",
    "fc00::1",
    "fdff::1",
]
SHUT = [
    "0.0.0.0",
    "0.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.169.254",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    "fec0::1",
    "ff02::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "3fff::1",
    "64:ff9b:1::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "4000::1",
    "::8.8.8.8",
    "::ffff:0:8.8.8.8",
    "not an address",
    "",
]


def wrapped(address: str) -> list[str]:
    """IPv6 addresses that lead to an IPv4 one."""
    value = int(IPv4Address(address))
    return [
        str(IPv6Address((0xFFFF << 32) | value)),  # IPv4-mapped
        str(IPv6Address((0x64FF9B << 96) | value)),  # NAT64
        str(IPv6Address((0x2002 << 112) | (value << 80) | 1)),  # 6to4
    ]


@pytest.mark.parametrize("allow_private", [False, True])
def test_public_addresses_may_be_dialed(allow_private):
    for address in PUBLIC:
        assert is_allowed_address(address, allow_private=allow_private), address


def test_private_addresses_need_the_option():
    for address in PRIVATE:
        assert not is_allowed_address(address, allow_private=False), address
        assert is_allowed_address(address, allow_private=True), address


@pytest.mark.parametrize("allow_private", [False, True])
def test_the_rest_stays_shut(allow_private):
    for address in SHUT:
        assert not is_allowed_address(address, allow_private=allow_private), address


@pytest.mark.parametrize("allow_private", [False, True])
def test_wrapped_addresses_are_judged_by_what_they_wrap(allow_private):
    for address in PUBLIC + PRIVATE + SHUT[:16]:
        if ":" in address:
            continue
        for form in wrapped(address):
            assert is_allowed_address(form, allow_private=allow_private) == is_allowed_address(
                address, allow_private=allow_private
            ), form


@given(st.ip_addresses())
def test_whatever_is_allowed_is_global_for_the_standard_library_too(address):
    if is_allowed_address(str(address), allow_private=False):
        embedded = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
        in_nat64 = int(address) >> 32 == 0x64FF9B << 64
        judged = IPv4Address(int(address) & 0xFFFFFFFF) if in_nat64 else embedded or address
        assert judged.is_global
        assert not judged.is_multicast


@pytest.mark.parametrize(
    ("host", "is_fine"),
    [
        ("example.com", True),
        ("1.2.3.4", True),
        ("1e100.net", True),
        ("0x7f.example", True),
        ("::1", True),
        ("127.1", False),
        ("2130706433", False),
        ("0x7f000001", False),
        ("0x7f.0.0.1", False),
        ("0177.0.0.1", False),
        ("127.0.0.01", False),
        ("127.0.0.0x1", False),
        ("1.2.3.4.5", False),
        ("256.0.0.1", False),
    ],
)
def test_only_four_decimal_numbers_are_an_ipv4_address(host, is_fine):
    assert is_canonical_or_no_ipv4(host) is is_fine


FULL_WIDTH = "１２７.0.0.1"
assert unicodedata.normalize("NFKC", FULL_WIDTH) == "127.0.0.1"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:6666\\@1.1.1.1/x.png",
        "http://allowed.example\\.evil.example/",
        "http://a\tb/",
        "http://a\nb/",
        "http://a/\r\nHost: b",
        "http://a/\x00",
        "http://a@b/",
        "http://a:b@c/",
        "http://@b/",
        "http://exa mple/",
        "http://exa\u00a0mple/",
        "http:///x",
        "http://",
        "http:/x",
        "http:x",
        "http://[::1",
        "http://[::1]x/",
        "http://[::1%25eth0]/",
        "http://[1.2.3.4]/",
        "HTTP:\\\\x",
        "http://127.0.0.%31/",
        f"http://{FULL_WIDTH}/",
        "http://127。0。0。1/",
        "http://①.example/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://127.1/",
        "http://0177.0.0.1/",
        "http://a..b/",
        "http://.a/",
        "http://a../",
        "http://" + "a" * 64 + ".example/",
        "http://" + "a." * 130 + "example/",
        "http://a:0/",
        "http://a:65536/",
        "http://a:-1/",
        "http://a:+80/",
        "http://a:٣/",
        "http://a:8 0/",
        "http://a:1:2/",
        "http://a/" + "x" * 70_000,
        "http://exa<mple/",
        "http://exa'mple/",
    ],
)
def test_a_url_that_clients_could_read_differently_is_refused(url):
    with pytest.raises(BlockedURLError) as caught:
        parse_http_url(url)
    assert "example" not in str(caught.value)
    assert "127" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "target", "host_header"),
    [
        ("http://Example.COM/A?b=C#d", "http", "example.com", 80, b"/A?b=C", b"example.com"),
        ("HTTPS://a.b.:8443", "https", "a.b", 8443, b"/", b"a.b:8443"),
        ("https://a:443/", "https", "a", 443, b"/", b"a"),
        ("http://a:/x", "http", "a", 80, b"/x", b"a"),
        ("http://[2606:4700::1111]/x", "http", "2606:4700::1111", 80, b"/x", b"[2606:4700::1111]"),
        ("http://[::1]:81/", "http", "::1", 81, b"/", b"[::1]:81"),
        ("http://bücher.example/ü", "http", "xn--bcher-kva.example", 80, b"/%C3%BC", None),
        ("http://a_b.example/a b.png", "http", "a_b.example", 80, b"/a%20b.png", None),
        ("http://a?b", "http", "a", 80, b"/?b", None),
        ("http://a/\\@b", "http", "a", 80, None, None),
    ],
)
def test_reads_a_url_once(url, scheme, host, port, target, host_header):
    parsed = parse_http_url(url)
    assert (parsed.scheme, parsed.host, parsed.port) == (scheme, host, port)
    if target is not None:
        assert parsed.target == target
    if host_header is not None:
        assert parsed.host_header == host_header
    assert "#" not in parsed.text


@given(
    st.text(
        st.sampled_from("aB1.:/?#@\\\\%[]-_~ \t\n;=&+") | st.sampled_from("é。１\u200b\udc80"),
        max_size=24,
    )
)
def test_any_text_is_refused_or_read_as_the_standard_library_reads_it(text):
    for scheme in ("http", "HTTPS"):
        url = f"{scheme}://{text}"
        try:
            parsed = parse_http_url(url)
        except BlockedURLError:
            continue
        other = urlsplit(url)
        if url.isascii() and ":" not in parsed.host:
            assert parsed.host == (other.hostname or "").removesuffix(".")
        assert parsed.port == (other.port or (80 if scheme == "http" else 443))
        assert parse_http_url(parsed.text) == parsed


@pytest.mark.parametrize(
    ("location", "host", "target"),
    [
        ("/b?c", "a.example", b"/b?c"),
        ("b", "a.example", b"/x/b"),
        ("//b.example/c", "b.example", b"/c"),
        ("https://b.example/", "b.example", b"/"),
        ("?q", "a.example", b"/x/y?q"),
        ("/b c.png", "a.example", b"/b%20c.png"),
        ("/ü?ü", "a.example", b"/%C3%BC?%C3%BC"),
    ],
)
def test_a_redirect_may_be_relative(location, host, target):
    joined = join_http_url(parse_http_url("http://a.example/x/y"), location)
    assert (joined.host, joined.target) == (host, target)


@given(st.text(st.sampled_from("aB1.:/?@\\%25[]{}<>|^`'\"()!$&*+,;=~_- é€"), max_size=12))
@example(";?")
def test_a_redirect_is_escaped_as_a_first_hop_is(text):
    base = parse_http_url("http://a.example/x")
    path = f"/p{text}q"
    first = parse_http_url(f"http://a.example{path}")
    assert join_http_url(base, f"http://a.example{path}") == first
    # A relative one has its dot segments removed (RFC 3986 section 5.2.4).
    if "/." not in path and "//" not in path:
        assert join_http_url(base, path) == first


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "ftp://a.example/",
        "javascript:1",
        "\\\\b.example/",
        "/\\b.example/",
        "http:\\\\b.example",
        "http://b@c.example/",
        "//b@c.example/",
        "http://127.0.0.%31/",
        "http://0x7f000001/",
        "http://[::1",
        "http://b.example:99999/",
        " /b",
        "/b ",
        "/b\tc",
        "//b.example\\@c.example/",
        "http:/b.example/",
        "http:b.example",
    ],
)
def test_a_redirect_is_held_to_the_same_form(location):
    with pytest.raises(BlockedURLError):
        join_http_url(parse_http_url("http://a.example/x/y"), location)


def test_hosts_are_compared_whole_by_their_ascii_form():
    domains = AllowedDomains(["Example.COM.", "bücher.example", "::1", "10.0.0.1"])
    for url in [
        "http://example.com/",
        "http://EXAMPLE.com.:81/",
        "http://xn--bcher-kva.example/",
        "http://bücher.example/",
        "http://[::1]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://10.0.0.1/",
    ]:
        domains.check(parse_http_url(url))
    for url in [
        "http://sub.example.com/",
        "http://example.com.evil.example/",
        "http://evilexample.com/",
        "http://[::2]/",
    ]:
        with pytest.raises(BlockedURLError, match="allowed_media_domains"):
            domains.check(parse_http_url(url))


@pytest.mark.parametrize("domains", [None, [], ()])
def test_without_a_list_any_host_is_allowed(domains):
    AllowedDomains(domains).check(parse_http_url("http://any.example/"))


@pytest.mark.parametrize(
    "entry", ["", "a/b", "http://a", "a b", "a@b", "127.1", "*.example", "a:80", "["]
)
def test_an_entry_that_is_no_host_is_a_mistake(entry):
    with pytest.raises(ConfigurationError):
        AllowedDomains([entry])
