"""Which network addresses a media URL may reach.

Owns the verdict on one IP address. Must never resolve a name or open a socket. The standard
library's ``is_global`` alone is not enough: it knows nothing of embedded IPv4 addresses (NAT64,
6to4) nor of metadata services on otherwise ordinary addresses.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

__all__ = ["is_allowed_address", "is_canonical_or_no_ipv4"]

# IANA special-purpose registries (RFC 6890 and its updates), as of 2026.
_PRIVATE = (
    ip_network("10.0.0.0/8"),  # RFC 1918
    ip_network("127.0.0.0/8"),  # loopback
    ip_network("172.16.0.0/12"),  # RFC 1918
    ip_network("192.168.0.0/16"),  # RFC 1918
    ip_network("::1/128"),  # loopback
    ip_network("fc00::/7"),  # unique local
)
_SHUT = (
    ip_network("0.0.0.0/8"),  # "this network"; 0.0.0.0 reaches the local host
    ip_network("100.64.0.0/10"),  # carrier-grade NAT; holds a metadata service (100.100.100.200)
    ip_network("168.63.129.16/32"),  # a cloud's host agent, on a public address
    ip_network("169.254.0.0/16"),  # link-local: cloud metadata
    ip_network("192.0.0.0/24"),  # IETF protocol assignments; holds a metadata service (192.0.0.192)
    ip_network("192.0.2.0/24"),  # documentation
    ip_network("192.88.99.0/24"),  # 6to4 relays, deprecated
    ip_network("198.18.0.0/15"),  # benchmarking
    ip_network("198.51.100.0/24"),  # documentation
    ip_network("203.0.113.0/24"),  # documentation
    ip_network("224.0.0.0/4"),  # multicast
    ip_network("240.0.0.0/4"),  # reserved, and limited broadcast
    ip_network("2001::/23"),  # IETF protocol assignments: Teredo, ORCHID, benchmarking
    ip_network("2001:db8::/32"),  # documentation
    ip_network("3fff::/20"),  # documentation
    ip_network("fd00:ec2::254/128"),  # a cloud's metadata service, in unique local space
    ip_network("fd20:ce::254/128"),  # a cloud's metadata service, in unique local space
)
_GLOBAL_V6 = ip_network("2000::/3")  # all that is assigned as global unicast
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")


def is_allowed_address(address: str, *, allow_private: bool) -> bool:
    """Whether a connection to `address` may be opened.

    Global unicast addresses may. `allow_private` opens loopback, RFC 1918 and unique local
    addresses too, and nothing else: link-local (cloud metadata), multicast, unspecified and
    reserved ones stay shut. IPv4 addresses inside IPv4-mapped, NAT64 and 6to4 ones are judged in
    their place.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    unwrapped = _unwrap(parsed)
    if isinstance(unwrapped, IPv6Address) and unwrapped.scope_id is not None:
        return False
    if any(unwrapped in network for network in _SHUT):
        return False
    if any(unwrapped in network for network in _PRIVATE):
        return allow_private
    return isinstance(unwrapped, IPv4Address) or unwrapped in _GLOBAL_V6


def _unwrap(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if isinstance(address, IPv6Address):
        if address in _MAPPED or address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        if address in _6TO4:
            return IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
    return address


def is_canonical_or_no_ipv4(host: str) -> bool:
    """Whether `host` is a name, an IPv6 address, or four decimal numbers without leading zeros.

    False for the forms that resolvers take for IPv4 addresses too (``127.1``, ``0x7f000001``,
    ``2130706433``, ``0177.0.0.1``): a name never ends in a number (RFC 3696 section 2).
    """
    last = host.rsplit(".", 1)[-1]
    if ":" in host or not (last.isdecimal() or last[:2] in ("0x", "0X")):
        return True
    try:
        return str(IPv4Address(host)) == host
    except ValueError:
        return False
