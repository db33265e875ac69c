"""What a daemon makes of errors about one checkpoint or pin: no verdict, no word about others, and it is told."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from disk import Disk
from fakes import FakeClock, Node, outcomes, pass_time, restarted, save
from faults import failing, hidden
from heartbeats import make_heartbeat

from sidecar.daemon.storage_thread import Joined, JoinRun, Sync
from sidecar.errors import StorageError
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint, folder_name
from sidecar.retention.pins.pin import pin
from sidecar.retention.pins.policy import PinDecision
from sidecar.retention.saves.retention import CleanupRequest


class Names:
    """These checkpoints are wanted; `settled` are those that the journal knows. Nothing is exported."""

    exports = ()

    def __init__(self, *wanted, settled=()) -> None:
        self.wanted = wanted
        self.before = 0
        self._settled = settled

    def decide(self, found) -> PinDecision:
        """As `PinPolicy`."""
        keys = frozenset(key for key in found if key[0] in self.wanted)
        return PinDecision(keys, keys)

    def is_settled(self, _) -> bool:
        """As `PinPolicy`."""
        return False

    def retains(self, key) -> bool:
        """As `PinPolicy`."""
        return key[0] in self.wanted

    def of_the_journal(self):
        """As `PinPolicy`."""
        return self

    def exported(self):
        """As `PinPolicy`."""
        return {}

    def settled_as(self, folder):
        """As `PinPolicy`."""
        return [key for key in self._settled if folder_name(key) == folder]


class Looks:
    """The courier of a node whose run is open, visited by hand."""

    def __init__(self, folder, **settings) -> None:
        self.node = Node(folder, FakeClock(), **settings)
        self.node.checkpoint_dir.mkdir(parents=True)
        self.storage_thread, self.pinner = self.node.storage_thread, self.node.storage_thread.reconciler.pinner
        assert isinstance(self.storage_thread.answer(JoinRun()), Joined)

    def __call__(self, *wanted, seconds=2.0, settled=()):
        """One visit with a look, after some time."""
        self.node.clock.seconds += seconds
        beat = make_heartbeat(run=self.storage_thread._membership.journal.run)
        return self.storage_thread.answer(
            Sync(heartbeat=beat, scan=True, pin_policy=Names(*wanted, settled=settled), tidying=CleanupRequest())
        )

    @property
    def root(self) -> Path:
        """The checkpoint directory."""
        return self.node.checkpoint_dir

    @property
    def pins(self) -> Path:
        """The folder of pins."""
        return self.node.run_dir / "pins"

    def pinned(self) -> list[str]:
        """The names of what is pinned."""
        return sorted(path.name.split("@")[0] for path in self.pins.glob("[!.]*"))


@pytest.fixture
def looks(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return Looks(tmp_path)


def named(told) -> list[str]:
    return sorted(name.split("@")[0] for name in told)


# -- found before, and not now -----------------------------------------------------------------------------------------


def test_what_a_listing_misses_is_still_found(looks):
    """Its files stand where they stood; once they do not, it is gone."""
    for step in (5, 6):
        save(looks.root, step, keep=[5])
    before = looks().reconciliation.scan
    files = [path.name for path in looks.root.glob("ckpt-5.*")]
    with hidden(*files):
        for _ in range(3):
            answer = looks(seconds=400)
            assert answer.reconciliation.scan.by_key.keys() == before.by_key.keys()
            assert (answer.reconciliation.given_up, answer.reconciliation.scan.unknown) == ((), {})
            assert [found.checkpoint.name for found in answer.reconciliation.scan.found] == ["ckpt-5", "ckpt-6"]
    for name in files:
        (looks.root / name).unlink()
    assert named(key[0] for key in looks(seconds=400).reconciliation.scan.by_key) == ["ckpt-6"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_asked_for_is_not_gone(looks, code):
    """A listing misses it, and its files do not answer: it is still known, and the reason is told."""
    save(looks.root, 5)
    before = looks().reconciliation.scan
    with (
        hidden(*(path.name for path in looks.root.glob("ckpt-5.*"))),
        failing("stat", looks.root / "ckpt-5.index", code),
    ):
        for _ in range(3):
            answer = looks(seconds=400)
            assert answer.reconciliation.scan.by_key.keys() == before.by_key.keys()
            assert named(answer.reconciliation.scan.unknown) == ["ckpt-5"]
    for path in looks.root.glob("ckpt-5.*"):
        path.unlink()
    gone = looks(seconds=400).reconciliation.scan
    assert (gone.by_key, gone.unknown) == ({}, {})


def test_news_tell_of_what_was_absent_for_a_while_and_then_is_gone(looks):
    """Whoever only hears of news would believe for ever that it is there."""
    save(looks.root, 5)
    looks()
    files = [path.name for path in looks.root.glob("ckpt-5.*")]
    with hidden(*files):
        shown = [looks(seconds=400).reconciliation.scan for _ in range(2)]
        for name in files:
            (looks.root / name).unlink()
        shown.append(looks(seconds=400).reconciliation.scan)


def test_a_pin_that_cannot_be_read_for_long_is_evaluated_when_it_can(tmp_path, monkeypatch):
    """Training deleted all but the pin; the plans of others come and go meanwhile."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    node = Node(tmp_path, FakeClock())
    node.silent = {"Evaluate"}
    for step in (5, 6):
        save(node.checkpoint_dir, step, keep=[5])
        pass_time(6, node)
    save(node.checkpoint_dir, 7)
    pass_time(6, node)
    (folder,) = (node.run_dir / "pins").glob("ckpt-6@*")
    with failing("stat", folder, errno.EIO):
        pass_time(20, node)
        assert "vanished" not in [verdict for verdict, _ in outcomes(node.history)]
        assert [key[0] for key in node.state.complete] == ["ckpt-5", "ckpt-6", "ckpt-7"]
    node.silent = set()
    pass_time(60, node)
    ended = {name: verdict for verdict, name in outcomes(node.history)}
    assert ended["ckpt-6"] == ended["ckpt-7"] == "succeeded"


# -- pinning and unpinning ---------------------------------------------------------------------------------------------


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
    answers = [looks(*wanted) for _ in range(200)]
    assert looks.pinned() == ["ckpt-7"]
    for answer in answers:
        assert (answer.error, answer.reconciliation.given_up) == (None, ())
        assert named(answer.reconciliation.scan.failed) == ["ckpt-6"]
        assert named(key[0] for key in answer.reconciliation.scan.by_key) == ["ckpt-5", "ckpt-6", "ckpt-7"]
    assert 400 / 40 < made.count("ckpt-6") < 30
    looks.pinner.make = make
    for _ in range(20):
        answer = looks(*wanted)
    assert looks.pinned() == ["ckpt-6", "ckpt-7"]
    assert answer.reconciliation.scan.failed == {}


def test_a_quota_empties_itself(looks):
    """What is not wanted any more is let go first, in the same look; what failed before is tried at once then."""
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


def test_one_that_cannot_be_let_go_holds_up_no_other(looks, monkeypatch):
    """It is told and tried again."""
    for step in (5, 6):
        save(looks.root, step, keep=[5])
    looks("ckpt-5", "ckpt-6")
    rename = os.rename

    def refuse(name, *arguments, **settings):
        if str(name).startswith("ckpt-5@"):
            raise OSError(errno.EACCES, "Permission denied")
        return rename(name, *arguments, **settings)

    monkeypatch.setattr(os, "rename", refuse)
    answers = [looks() for _ in range(4)]
    assert looks.pinned() == ["ckpt-5"]
    assert answers[-1].error is None
    assert named(answers[-1].reconciliation.scan.failed) == ["ckpt-5"]
    monkeypatch.setattr(os, "rename", rename)
    for _ in range(20):
        looks()
    assert looks.pinned() == []


def test_a_name_that_the_filesystem_does_not_allow_is_explained(looks, monkeypatch):
    """Encrypted ones allow 143 bytes: nothing is copied in vain, and the sentence says what to do."""
    stat = os.stat

    def short(path, *arguments, **settings):
        if "dir_fd" in settings and len(str(path)) > 12:
            raise OSError(errno.ENAMETOOLONG, "File name too long")
        return stat(path, *arguments, **settings)

    save(looks.root, 5)
    looks()
    monkeypatch.setattr(os, "stat", short)
    answer = looks("ckpt-5")
    (why,) = answer.reconciliation.scan.failed.values()
    assert "longer than the filesystem allows" in why
    assert looks.pinned() == []


# -- pins that only their names tell of --------------------------------------------------------------------------------


def test_a_pin_that_nobody_can_read_goes_by_its_name_when_that_is_settled(looks):
    """In the second look, as all that is let go; the others stay, and so does what a newer release made."""
    digests = {"ckpt-1": "1" * 64, "ckpt-2": "2" * 64, "ckpt-3": "3" * 64, "ckpt-4": "4" * 64}
    settled = [(name, digest) for name, digest in digests.items() if name != "ckpt-2"]
    for name, digest in digests.items():
        folder = looks.pins / f"{name}@{digest[:12]}"
        folder.mkdir(parents=True)
        (folder / "garbage").write_bytes(b"?")
    (looks.pins / f"ckpt-4@{'4' * 12}" / ".checkpoint.json").write_bytes(
        dumps(Checkpoint(name="ckpt-4", digest="4" * 64, step=4, format="zarr"))
    )
    looks("ckpt-3", settled=settled)
    assert looks.pinned() == ["ckpt-1", "ckpt-2", "ckpt-3", "ckpt-4"]
    looks("ckpt-3", settled=settled)
    assert looks.pinned() == ["ckpt-2", "ckpt-3", "ckpt-4"]


def test_the_journal_says_what_a_pins_name_means(tmp_path, monkeypatch):
    """It was evaluated and let go; what is left of its pin goes when that comes back, as storage may bring it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    node = Node(tmp_path, FakeClock())
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    ((name, digest),) = node.history.verdicts.succeeded
    left = [node.run_dir / "pins" / each for each in (f"{name}@{digest[:12]}", f"{name}@{'0' * 12}")]
    for each in left:
        each.mkdir(parents=True)
        (each / "rest").write_bytes(b"?")
    pass_time(10, node)
    assert [each.exists() for each in left] == [False, True]


# -- left-overs --------------------------------------------------------------------------------------------------------


def leave(looks, size=100_000, name=f".tmp-{'a' * 12}-{'b' * 8}-{'c' * 16}"):
    """What a copier that is gone for good left."""
    folder = looks.pins / name
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(b"\0" * size)
    return folder


def test_what_a_dead_copier_left_is_in_nobodys_way(tmp_path, monkeypatch):
    """Once it does not grow no room is kept for it; and it goes when nobody has touched it for long."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    looks = Looks(tmp_path, pin_max_bytes=100_000)
    left = leave(looks)
    for step in (5, 6):
        save(looks.root, step, keep=[5])
    assert looks("ckpt-5", "ckpt-6").reconciliation.no_room
    assert looks.pinned() == []
    for _ in range(10):
        answer = looks("ckpt-5", "ckpt-6")
    assert (looks.pinned(), answer.reconciliation.no_room, left.exists()) == (["ckpt-5", "ckpt-6"], {}, True)
    for _ in range(50):
        looks("ckpt-5", seconds=11.0)
    assert left.exists()
    for _ in range(10):
        looks("ckpt-5", seconds=11.0)
    assert not left.exists()


def test_a_copy_that_grows_or_is_touched_stays(looks):
    """Its maker lives."""
    left, quiet = leave(looks), leave(looks, name=f".tmp-{'d' * 12}-{'b' * 8}-{'c' * 16}")
    for number in range(100):
        os.utime(left, (number, number))
        looks(seconds=11.0)
    assert (left.exists(), quiet.exists()) == (True, False)


def test_a_pin_that_cannot_be_read_does_not_block_all_others(tmp_path, monkeypatch):
    """It takes all that pins may take, and stays: one that is wanted is held all the same, which is said."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    looks = Looks(tmp_path, pin_max_bytes=1000)
    folder = looks.pins / f"ckpt-1@{'1' * 12}"
    folder.mkdir(parents=True)
    (folder / "garbage").write_bytes(b"?" * 1000)
    for step in (5, 6):
        save(looks.root, step, keep=[5])
    answer = looks("ckpt-5", "ckpt-6")
    assert looks.pinned() == ["ckpt-1", "ckpt-5"]
    assert named(name for name, _ in answer.reconciliation.no_room) == ["ckpt-6"]
    assert [name for name, why in answer.reconciliation.scan.waiting if "pinned in spite" in why] == ["ckpt-5"]
    assert not [name for name, why in looks("ckpt-5", "ckpt-6").reconciliation.scan.waiting if "pinned in spite" in why]


# -- a disk without room -----------------------------------------------------------------------------------------------


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


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
def test_who_was_not_heard_of_for_long_lets_go_what_is_settled(tmp_path, monkeypatch):
    """No heartbeat could be written for several leases: such a node may not decide, but the journal has decided."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with Disk(tmp_path / "disk") as disk:
        node = Node(tmp_path / "node", FakeClock(), state_dir=disk.path / "state")
        node.silent = {"Evaluate"}
        save(node.checkpoint_dir, 5)
        pass_time(5, node)
        pins = node.run_dir / "pins"
        ((folder,), rename) = pins.glob("ckpt-5@*"), os.rename

        def refuse(name, *arguments, **settings):
            if name == folder.name:
                raise OSError(errno.EIO, "Input/output error")
            return rename(name, *arguments, **settings)

        monkeypatch.setattr(os, "rename", refuse)  # so that its pin stands when the disk fills up
        node.silent = set()
        while not node.history.verdicts.succeeded:
            pass_time(1, node)
        node.silent = {"Evaluate"}
        save(node.checkpoint_dir, 6, keep=[5])
        pass_time(5, node)
        with disk.full(names=True):
            pass_time(60, node)
            assert "No space left" in node.status.unready
            assert sorted(path.name.split("@")[0] for path in pins.iterdir()) == ["ckpt-5", "ckpt-6"]
            monkeypatch.setattr(os, "rename", rename)
            pass_time(120, node)
            assert sorted(path.name.split("@")[0] for path in pins.iterdir()) == ["ckpt-6"]
        node.silent = set()
        pass_time(30, node)
        assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
def test_who_is_started_on_a_full_disk_lets_go_what_is_settled(tmp_path, monkeypatch):
    """All nodes lost power, say: nobody else is there to make room, and training waits for it, too."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with Disk(tmp_path / "disk") as disk:
        node = Node(tmp_path / "node", FakeClock(), state_dir=disk.path / "state")
        for step in (5, 6):
            save(node.checkpoint_dir, step, keep=[5])
            node.silent = {"Evaluate"} if step == 6 else set()
            pass_time(30, node)
        pins = node.run_dir / "pins"
        (wanted,) = pins.glob("ckpt-6@*")
        ((name, digest),) = node.history.verdicts.succeeded
        shutil.copytree(wanted, pins / Checkpoint(name=name, digest=digest, step=None, format="").folder)
        with disk.full(names=True):
            late = restarted(node, "i2", state_dir=disk.path / "state")
            late.silent = {"Evaluate"}
            pass_time(120, late)
            assert late.log.of("storage_failed")
            assert [path.name.split("@")[0] for path in pins.iterdir()] == ["ckpt-6"]
        late.silent = set()
        pass_time(60, late)
        assert outcomes(late.history)[-1] == ("succeeded", "ckpt-6")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_where_there_is_no_room_for_another_name_a_pin_goes_in_place(looks, monkeypatch, code):
    """What says what it is goes first: a pin that is half removed is never read as one."""
    save(looks.root, 5)
    looks("ckpt-5")
    rename, unlinked, unlink = os.rename, [], os.unlink

    def refuse(name, *arguments, **settings):
        if str(name).startswith("ckpt-5@"):
            raise OSError(code, os.strerror(code))
        return rename(name, *arguments, **settings)

    def noted(name, *arguments, **settings):
        unlinked.append(str(name))
        return unlink(name, *arguments, **settings)

    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(os, "unlink", noted)
    for _ in range(2):
        looks()
    assert looks.pinned() == []
    assert unlinked.index(".checkpoint.json") < unlinked.index("ckpt-5.index")


# -- links that another user planted -----------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path):
    """A folder of somebody else's, as valuable as it looks like a pin."""
    folder = tmp_path / "victim"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "precious").write_bytes(b"p")
    (folder / "precious").write_bytes(b"p")
    return folder


def content(folder):
    return sorted((str(path.relative_to(folder)), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_where_the_pins_are_a_link_nothing_is_written_or_removed(looks, victim):
    """It is said, and the daemon goes on."""
    (victim / f".tmp-{'a' * 12}-{'b' * 8}-{'c' * 16}").mkdir()
    before = content(victim)
    save(looks.root, 5)
    looks.pins.symlink_to(victim)
    for wanted in (["ckpt-5"], [], []):
        answer = looks(*wanted, seconds=1000)
        assert "is a link or a file" in str(answer.error)
    found = Node(
        looks.root.parent, FakeClock(), state_dir=looks.root.parent / "other"
    ).storage_thread.reconciler.checkpoints.catalog.scan()
    for each in found.found:
        with pytest.raises(StorageError, match="link"):
            pin(each, looks.pins)
        with pytest.raises(StorageError, match="link"):
            looks.pinner.unpin(each.checkpoint)
    assert content(victim) == before


def test_links_in_the_pins_are_not_followed(looks, victim):
    """Neither in place of a pin nor of what a copier left."""
    save(looks.root, 5)
    looks("ckpt-5")
    before = content(victim)
    (folder,) = looks.pins.iterdir()
    (folder / "link").symlink_to(victim)
    (looks.pins / f".tmp-{'a' * 12}-{'b' * 8}-{'c' * 16}").symlink_to(victim)
    (looks.pins / f"ckpt-6@{'6' * 12}").symlink_to(victim)
    settled = [("ckpt-6", "6" * 64)]
    assert looks.pinner.bytes() < 1000
    for _ in range(200):
        looks(seconds=10.0, settled=settled)
    assert content(victim) == before
    assert not folder.exists()
