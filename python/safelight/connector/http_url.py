"""``http:`` and ``https:`` URLs: one parser for what is checked and what is dialed.

Owns the form of a URL, on the first hop and on every later one, and the allow list of hosts. Must
never open a connection, nor repeat a URL in an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin

from safelight.connector.address import is_canonical_or_no_ipv4
from safelight.errors import BlockedURLError, ConfigurationError

if TYPE_CHECKING:
    import httpx2

__all__ = ["AllowedDomains", "HTTPURL", "get_allowed_domains", "join_http_url", "parse_http_url"]

# RFC 3986 ends an authority at the first of these; a backslash is refused on its own account.
_AUTHORITY = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::([0-9]{1,5})?)?", re.ASCII)
_ASCII_HOST = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BACKSLASH_OR_SPACE = re.compile(r"[\\\s]")
_MAX_URL = 65_536
_MAX_HOST = 253
_MAX_LABEL = 63


class HTTPURL(NamedTuple):
    """A URL as it is checked and dialed. The fragment is gone; a trailing dot of the host too."""

    scheme: str
    host: str
    port: int
    target: bytes

    @property
    def host_header(self) -> bytes:
        """The value of the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = self.port == (443 if self.scheme == "https" else 80)
        return (host if is_default else f"{host}:{self.port}").encode("ascii")

    @property
    def text(self) -> str:
        """The whole URL: a base for redirects and a cache key, never part of a message."""
        return f"{self.scheme}://{self.host_header.decode()}{self.target.decode()}"


def parse_http_url(url: str) -> HTTPURL:
    """Parse `url`, whose scheme is http or https.

    Raises:
        BlockedURLError: The URL is malformed, or of a form that clients read differently: user
            info, a backslash, percent-encoding or whitespace in the host, a short, octal or
            hexadecimal IPv4 address.
    """
    if len(url) > _MAX_URL:
        raise BlockedURLError(f"URL has {len(url)} characters, over {_MAX_URL}")
    if _CONTROL.search(url):
        raise BlockedURLError("URL has a control character")
    match = _AUTHORITY.match(url)
    if match is None:
        raise BlockedURLError("URL has no host: its scheme is not followed by '//'")
    authority = match[1]
    _check_authority(authority)
    import httpx2

    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError):
        raise BlockedURLError("URL is malformed") from None
    return _checked(parsed, is_ascii=authority.isascii())


def join_http_url(base: HTTPURL, location: str) -> HTTPURL:
    """Parse the target of a redirect, which may be relative to `base`.

    Raises:
        BlockedURLError: As `parse_http_url`, or the scheme is neither http nor https.
    """
    if _CONTROL.search(location) or location != location.strip() or "\\" in location[:2]:
        raise BlockedURLError("redirect has a URL that clients read differently")
    if location.startswith("//"):
        location = f"{base.scheme}:{location}"
    if _SCHEME.match(location):
        # With a host of its own it is read as a first hop is.
        if _AUTHORITY.match(location) is None:
            raise BlockedURLError("redirect leads to a scheme other than http and https")
        return parse_http_url(location)
    # The standard library drops an empty parameter; DEL is refused above, so it stands for one ';'.
    try:
        joined = urljoin(base.text.replace(";", "\x7f"), location.replace(";", "\x7f"))
    except ValueError:
        raise BlockedURLError("redirect has a malformed URL") from None
    return parse_http_url(joined.replace("\x7f", ";"))


def _check_authority(authority: str) -> None:
    if "@" in authority:
        raise BlockedURLError("URL must not have user info")
    if "\\" in authority:
        raise BlockedURLError("URL has a backslash in its host")
    if "%" in authority:
        raise BlockedURLError("URL has percent-encoding in its host")
    if _BACKSLASH_OR_SPACE.search(authority):
        raise BlockedURLError("URL has whitespace in its host")
    match = _HOST_PORT.fullmatch(authority)
    if match is None:
        raise BlockedURLError("URL has a malformed host or port")
    host, port = match.groups()
    if port is not None and not 0 < int(port) < 65_536:
        raise BlockedURLError("URL has a port that does not exist")
    if host.isascii() and host[0] != "[" and _ASCII_HOST.fullmatch(host) is None:
        raise BlockedURLError("URL has a malformed host")
    if not is_canonical_or_no_ipv4(host.removesuffix(".")) and host[0] != "[":
        raise BlockedURLError("URL has an IPv4 address that is not four decimal numbers")


def _checked(parsed: httpx2.URL, *, is_ascii: bool) -> HTTPURL:
    host = parsed.raw_host.decode("ascii").removesuffix(".")
    if ":" in host:
        host = str(IPv6Address(host))
    elif len(host) > _MAX_HOST or not all(
        0 < len(label) <= _MAX_LABEL for label in host.split(".")
    ):
        raise BlockedURLError("URL has a malformed host")
    # Other scripts' digits and dots become ASCII ones in the parser: no name of theirs is a number.
    is_number = host.replace(".", "").isdecimal()
    if not is_canonical_or_no_ipv4(host) or (is_number and not is_ascii):
        raise BlockedURLError("URL has an IPv4 address that is not four decimal numbers")
    port = parsed.port or (443 if parsed.scheme == "https" else 80)
    return HTTPURL(parsed.scheme, host, port, parsed.raw_path)


class AllowedDomains:
    """The hosts that URLs may name, on every hop; none given means any.

    Hosts are compared whole (no subdomains), in lower case, by their IDNA form, without a
    trailing dot.

    Raises:
        ConfigurationError: An entry is not a host name or address.
    """

    __slots__ = ("_hosts",)

    def __init__(self, domains: Iterable[str] | None) -> None:
        self._hosts = frozenset(_host(domain) for domain in domains or ())

    def allows(self, host: str) -> bool:
        """Whether a URL may name `host`, given in its parsed form."""
        return not self._hosts or host in self._hosts

    def check(self, url: HTTPURL) -> None:
        """Raise unless the host of `url` is allowed.

        Raises:
            BlockedURLError: It is not.
        """
        if not self.allows(url.host):
            raise BlockedURLError("host is not in allowed_media_domains")


# An allow list is parsed once for all requests that have the same.
get_allowed_domains = lru_cache(maxsize=64)(AllowedDomains)


def _host(domain: str) -> str:
    if any(mark in domain for mark in "/?#"):
        raise ConfigurationError("allowed_media_domains has an entry that is not a host")
    is_address = domain.count(":") > 1
    bracketed = f"[{domain}]" if is_address and domain[0] != "[" else domain
    try:
        if ":" in domain and not is_address:
            raise BlockedURLError("a host has no port")
        return parse_http_url(f"http://{bracketed}/").host
    except BlockedURLError:
        raise ConfigurationError("allowed_media_domains has an entry that is not a host") from None
    except ImportError:
        # Without the client no URL is fetched that could be compared.
        return domain
