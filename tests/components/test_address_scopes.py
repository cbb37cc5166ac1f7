"""The scopes of addresses."""

import pytest

from kfp_distributed.components.external_services.address_scopes import AddressScope, scope_of


@pytest.mark.parametrize(
    ("address", "scope"),
    [
        ("8.8.8.8", AddressScope.PUBLIC),
        ("2606:4700::1111", AddressScope.PUBLIC),
        ("64:ff9b::808:808", AddressScope.PUBLIC),
        ("10.96.0.1", AddressScope.PRIVATE),
        ("172.20.1.1", AddressScope.PRIVATE),
        ("192.168.1.1", AddressScope.PRIVATE),
        ("100.100.100.200", AddressScope.PRIVATE),  # Credentials of Alibaba Cloud.
        ("fd00:ec2::254", AddressScope.PRIVATE),  # Credentials of AWS.
        ("::ffff:10.0.0.1", AddressScope.PRIVATE),
        ("64:ff9b::a00:1", AddressScope.PRIVATE),
        ("2002:a00:1::", AddressScope.PRIVATE),
        ("127.0.0.1", AddressScope.LOOPBACK),
        ("127.9.9.9", AddressScope.LOOPBACK),
        ("0.0.0.0", AddressScope.LOOPBACK),
        ("::", AddressScope.LOOPBACK),
        ("::1", AddressScope.LOOPBACK),
        ("::ffff:127.0.0.1", AddressScope.LOOPBACK),
        ("169.254.169.254", AddressScope.LINK_LOCAL),
        ("::ffff:169.254.169.254", AddressScope.LINK_LOCAL),
        ("64:ff9b::a9fe:a9fe", AddressScope.LINK_LOCAL),
        ("fe80::1%eth0", AddressScope.LINK_LOCAL),
        ("168.63.129.16", AddressScope.LINK_LOCAL),  # The machine agent's server of Azure.
        ("224.0.0.1", AddressScope.LINK_LOCAL),
    ],
)
def test_scopes(address, scope):
    assert scope_of(address) is scope
