"""Read Slurm's lists of nodes: the first name, and whether it is the only one."""

import pytest

from sidecar.policy.slurm_nodes import first_host


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n0", "n0"),
        ("n[0-3,7]", "n0"),
        ("n[3,7-9]", "n3"),
        ("gpu-a[01-12]", "gpu-a01"),
        ("login,gpu[1-2]", "login"),
        ("gpu[1-2],login", "gpu1"),
        ("n[1-2]-ib,x[3-4]", "n1-ib"),
        ("r[1-2]n[03-04]", "r1n03"),
        ("a.example.com", "a.example.com"),
        ("n[0-100000]", "n0"),
    ],
)
def test_the_first_name_of_a_list(nodes, first):
    """A list may have groups in brackets, suffixes and several dimensions; digits keep their zeros."""
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    "nodes", ["", ",", "a,", "a,,b", "n[0", "n[]", "n[a]", "n[1-]", "n[0-2]]", "n 0", "n[0-1", "a]", "(null) x"]
)
def test_other_text_is_not_a_list(nodes):
    """Nothing is guessed from a list that was cut off."""
    assert first_host(nodes) is None


@pytest.mark.timeout(10)
@pytest.mark.parametrize("text", ["n[", "n[1,", "a,", "[1-2]", "n[1]", "1,1"])
def test_a_hostile_list_takes_no_time(text):
    """100,000 repetitions are read once, from left to right."""
    first_host(text * 100_000)
