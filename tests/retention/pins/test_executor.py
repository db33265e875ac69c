"""Pin and unpin one after the other: an error about one checkpoint concerns no other."""

import errno
import os

import pytest
from disk import Disk
from fakes import save
from retention.pins.conftest import Looks

from sidecar.errors import StorageError


def named(told) -> list[str]:
    return sorted(name.split("@")[0] for name in told)


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.ENAMETOOLONG])
def test_one_that_cannot_be_pinned_holds_up_no_other(looks, code):
    """It is told, tried again in the next look, and then after longer and longer; the others are held and let go."""
    made, make = [], looks.pinner.make

    def refuse(found, pins, **options):
        made.append(found.checkpoint.name)
        if found.checkpoint.name == "ckpt-6":
            raise StorageError(f"cannot pin ckpt-6: {os.strerror(code)}")
        return make(found, pins, **options)

    save(looks.root, 5)
    looks("ckpt-5")
    looks.pinner.make = refuse
    for step in (6, 7):
        save(looks.root, step, keep=[5, 6])
    wanted = ("ckpt-6", "ckpt-7")
    answers = [looks(*wanted) for _ in range(100)]
    assert looks.pinned() == ["ckpt-7"]
    for answer in answers:
        assert (answer.error, answer.reconciliation.given_up) == (None, ())
        assert named(answer.reconciliation.scan.failed) == ["ckpt-6"]
        assert named(key[0] for key in answer.reconciliation.scan.by_key) == ["ckpt-5", "ckpt-6", "ckpt-7"]
    assert 200 / 40 < made.count("ckpt-6") < 20
    looks.pinner.make = make
    for _ in range(20):
        answer = looks(*wanted)
    assert looks.pinned() == ["ckpt-6", "ckpt-7"]
    assert answer.reconciliation.scan.failed == {}


def test_a_quota_empties_itself(looks):
    """Unpin first in the same scan, and then try at once what failed before."""
    make = looks.pinner.make

    def quota(found, pins, **options):
        if looks.pinned():
            raise StorageError("cannot pin: Disk quota exceeded")
        return make(found, pins, **options)

    looks.pinner.make = quota
    for step in (5, 6):
        save(looks.root, step, keep=[5])
    for _ in range(5):
        looks("ckpt-5", "ckpt-6", seconds=0.1)
    assert looks.pinned() == ["ckpt-5"]
    for _ in range(2):
        looks("ckpt-6", seconds=0.1)
    assert looks.pinned() == ["ckpt-6"]


def test_one_that_cannot_be_let_go_holds_up_no_other(looks, system_calls):
    """It is told and tried again."""
    for step in (5, 6):
        save(looks.root, step, keep=[5])
    looks("ckpt-5", "ckpt-6")
    system_calls.refuse("rename", errno.EACCES, lambda name, *_, **__: str(name).startswith("ckpt-5@"))
    answers = [looks() for _ in range(4)]
    assert looks.pinned() == ["ckpt-5"]
    assert answers[-1].error is None
    assert named(answers[-1].reconciliation.scan.failed) == ["ckpt-5"]
    system_calls.allow()
    for _ in range(20):
        looks()
    assert looks.pinned() == []


def test_a_name_that_the_filesystem_does_not_allow_is_explained(looks, system_calls):
    """Encrypted ones allow 143 bytes: nothing is copied in vain, and the sentence says what to do."""
    save(looks.root, 5)
    looks()
    system_calls.refuse("stat", errno.ENAMETOOLONG, lambda path, **named: "dir_fd" in named and len(str(path)) > 12)
    answer = looks("ckpt-5")
    (why,) = answer.reconciliation.scan.failed.values()
    assert "longer than the filesystem allows" in why
    assert looks.pinned() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
def test_a_full_disk_empties_itself(tmp_path):
    """Not a byte and not a name is left, so no heartbeat can be written: what is not wanted is let go all the same."""
    with Disk(tmp_path / "disk") as disk:
        looks = Looks(tmp_path / "node", state_dir=disk.path / "state")
        save(looks.root, 5)
        os.truncate(looks.root / "ckpt-5.data-00000-of-00001", 2 << 20)
        assert [looks("ckpt-5").error for _ in range(4)] == [None] * 4
        assert looks.pinned() == ["ckpt-5"]
        for path in looks.root.glob("ckpt-5.*"):
            path.unlink()
        with disk.full(names=True):
            for _ in range(2):
                assert isinstance(looks("ckpt-5").error, StorageError)
            assert looks.pinned() == ["ckpt-5"], "it is wanted"
            for _ in range(2):
                assert isinstance(looks().error, StorageError)
            assert looks.pinned() == []
            answer = looks()
            assert (answer.error, named(key[0] for key in answer.reconciliation.scan.by_key)) == (None, [])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_where_there_is_no_room_for_another_name_a_pin_goes_in_place(looks, system_calls, code):
    """Remove the record of a pin first, so that a half removed pin is never read as one."""
    save(looks.root, 5)
    looks("ckpt-5")
    unlinked = []
    system_calls.refuse("rename", code, lambda name, *_, **__: str(name).startswith("ckpt-5@"))
    system_calls.observe("unlink", lambda name, **__: unlinked.append(str(name)))
    for _ in range(2):
        looks()
    assert looks.pinned() == []
    assert unlinked.index(".checkpoint.json") < unlinked.index("ckpt-5.index")
