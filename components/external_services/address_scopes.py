"""The scopes of IP addresses, which decide where a redirect may lead (pure)."""

from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network


class AddressScope(IntEnum):
    """The scope of an address. A higher number is reachable from fewer machines."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2
    LINK_LOCAL = 3


# Services of clouds that answer the machines inside alone, at addresses that count as public.
_OF_CLOUDS = {ip_address("168.63.129.16")}
# IPv6 addresses whose last 32 bits are the IPv4 address that a gateway connects to (NAT64).
_NAT64 = ip_network("64:ff9b::/96")


def scope_of(address: str) -> AddressScope:
    """Return the scope of an IP address.

    Addresses that are not public, loopback or multicast count as private: those of RFC 1918, which pods and Services
    have, and all others that are not routed on the internet. Multicast addresses count as link-local.

    Args:
        address: IPv4 or IPv6 address in text form, with or without a zone such as "%eth0".

    Raises:
        ValueError: The text is not an IP address.
    """
    ip = _inner(ip_address(address.partition("%")[0]))
    if ip.is_link_local or ip.is_multicast or ip in _OF_CLOUDS:
        return AddressScope.LINK_LOCAL
    # A connection to the unspecified address, 0.0.0.0 or ::, reaches this machine.
    if ip.is_loopback or ip.is_unspecified:
        return AddressScope.LOOPBACK
    return AddressScope.PUBLIC if ip.is_global else AddressScope.PRIVATE


def _inner(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for; other addresses unchanged."""
    if isinstance(ip, IPv4Address):
        return ip
    if ip in _NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or ip
