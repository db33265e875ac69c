"""Which addresses this machine has, as the kernel tells them."""

import psutil

from sidecar.addresses import own_addresses, public

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.0.0.0/24 2 0 2
        |-- 10.0.0.0
           /24 link UNICAST
        |-- 10.0.0.7
           /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
     |-- 8.8.4.4
        /32 host LOCAL
Local:
        |-- 10.0.0.7
           /32 host LOCAL
"""
IF_INET6 = """fe8000000000000000fc00fffe000001 04 40 20 80     eth0
26064700000000000000000000001111 04 40 00 82     eth0
00000000000000000000000000000001 01 80 10 80       lo
"""


def test_addresses_are_read(tmp_path):
    """Each once, of both families; public are those that the internet routes."""
    (tmp_path / "4").write_text(FIB_TRIE)
    (tmp_path / "6").write_text(IF_INET6)
    found = own_addresses(tmp_path / "4", tmp_path / "6")
    assert found == ("10.0.0.7", "8.8.4.4", "fe80::fc:ff:fe00:1", "2606:4700::1111", "::1")
    assert public(found) == ("8.8.4.4", "2606:4700::1111")


def test_a_kernel_that_tells_none(tmp_path):
    """Nothing is known then, and nothing fails."""
    (tmp_path / "6").write_text("nonsense\n")
    assert own_addresses(tmp_path / "4", tmp_path / "6") == ()


def test_this_machine():
    """As psutil lists them by another way."""
    listed = {
        each.address.partition("%")[0]
        for all_ in psutil.net_if_addrs().values()
        for each in all_
        if each.family in (2, 10)
    }
    assert set(own_addresses()) >= listed
