"""Two nodes that reach their storage and not each other: two network namespaces, and a link that is cut."""

import os

import pytest
from integration.cluster import failure
from link import HOSTS, Link

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces and TUN devices need root"),
]


@pytest.fixture(scope="module")
def link():
    with Link() as made:
        yield made


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("new_tensorflow_cluster", id="tensorflow", marks=pytest.mark.tensorflow),
        pytest.param("new_torch_cluster", id="torch", marks=pytest.mark.torch),
    ],
)
def cluster(request, link):
    """Bounds are the usual ones: on an idle link nothing may be taken for lost."""
    made = request.getfixturevalue(request.param)()
    for number, host in enumerate(HOSTS):
        made.start(f"worker-{number}", before=link.within(number), host=host, reach=link.reach(number))
    return made


@pytest.fixture(autouse=True)
def _mend(cluster, link):
    yield
    link.parted = False
    cluster.free()


def test_a_link_is_cut_in_the_middle_of_an_evaluation(cluster, link):
    """Each side waits for the other, both daemons say so, and one of them goes on alone while the link is cut."""
    saved, _ = cluster.held(workers=2)
    link.parted = True
    cluster.free()
    rows = cluster.recovers(saved)
    assert failure(rows)["kind"] in ("stalled", "member_lost")
    assert rows[-1]["workers"] == 1


def test_a_group_that_was_warm_meets_a_cut_link(cluster, link):
    """Nothing was under way when it was cut; the hello tells."""
    cluster.free()
    cluster.is_whole()
    (row,) = cluster.recovers(cluster.save())
    assert row["workers"] == 2, "the link is mended"
    cluster.is_whole()
    link.parted = True
    rows = cluster.recovers(cluster.save())
    assert failure(rows)["kind"] in ("stalled", "member_lost")
    assert rows[-1]["workers"] == 1


def test_every_number_is_that_of_one_worker(cluster, sidecar):
    """All that were evaluated on the way are equal to the bit to what one process finds."""
    cluster.has_the_bits_of_one_worker(sidecar)
