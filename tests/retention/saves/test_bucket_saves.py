"""Saves go to the bucket of the state before an outcome, and from it when they are not retained."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from retention.saves.conftest import COUNT, closed

from sidecar.commands.state_storage import state_storage
from sidecar.errors import StorageError
from sidecar.protocol.records import Checkpoint, Member, Plan
from sidecar.retention.saves.bucket_saves import BucketSaves
from sidecar.retention.saves.cleanup import ArtifactCleanup
from sidecar.retention.saves.comparison_store import ComparisonStore
from sidecar.retention.saves.example_inputs import inputs_of
from sidecar.retention.saves.retention import CleanupRequest, RetainedStates
from sidecar.settings import Settings
from sidecar.system.bounded_calls import HangingError
from sidecar.system.object_store import BucketError, StoredObject


class Objects:
    """Objects in memory, in the order in which they were put."""

    def __init__(self):
        self.contents = {}
        self.broken = None

    def put(self, key, data: Path):
        """Read the file and keep its content."""
        if self.broken:
            raise self.broken
        self.contents[key] = data.read_bytes()

    def delete(self, key):
        """Forget an object."""
        if self.broken:
            raise self.broken
        self.contents.pop(key, None)

    def listing(self, folder=""):
        """Return the objects below a folder."""
        return [StoredObject(key, 1, 0, "") for key in self.contents if key.startswith(f"{folder}/")]


def plan(number=1, *nodes):
    members = tuple(Member(rank, node, f"{node}.i.1", "h:1") for rank, node in enumerate(nodes or ("a", "b")))
    checkpoint = Checkpoint(name="ckpt-5", digest="d" * 64, step=5, format="tf_object")
    given = {"attempt": 1, "settles": (), "task": "t", "proposer": "a", "proposed_at": "now"}
    return Plan(plan=number, run="r", nonce="n", checkpoint=checkpoint, members=members, **given)


@pytest.fixture
def objects():
    return Objects()


@pytest.fixture
def new_node(tmp_path, objects):
    """`new_node("a")` is a machine with a disk of its own."""

    def make(name, **changes):
        root = tmp_path / name
        given = {"objects": objects, "root": root, "node": name, "local": ArtifactCleanup(root), "now": lambda: 0.0}
        return BucketSaves(**given | changes)

    return make


def save(node, folder, **files):
    """Let a worker save: `states.json` and other files, one of them in a folder."""
    place = node.root / folder
    (place / "predictions").mkdir(parents=True)
    (place / "predictions" / "test.npy").write_bytes(b"rows")
    for name, content in {"states": b"{}", **files}.items():
        (place / f"{name}.json").write_bytes(content)


def test_a_plan_is_stored_once_the_saves_of_all_its_workers_are(new_node, objects):
    """Each node sends its own part, with `states.json` as the last object; a link is not followed."""
    first, second, both = new_node("a"), new_node("b"), plan()
    save(first, both.saves[0], weights=b"w" * 100)
    (first.root / both.saves[0] / "passwd").symlink_to("/etc/passwd")
    assert first.store(both) is False
    assert list(objects.contents)[-1] == f"{both.saves[0]}/states.json"
    assert sorted(objects.contents) == [
        f"{both.saves[0]}/{name}" for name in ("predictions/test.npy", "states.json", "weights.json")
    ]
    save(second, both.saves[1])
    sent = dict(objects.contents)
    assert (second.store(both), first.store(both)) == (True, True)
    assert {key: objects.contents[key] for key in sent} == sent


def test_an_upload_that_fails_is_an_error_of_storage_and_one_that_takes_long_is_none(new_node, objects):
    """The plan stays open; nothing of it is taken for stored."""
    objects.broken = BucketError(errno.EACCES, "allow s3:PutObject")
    node = new_node("a")
    alone = plan(1, "a")
    save(node, alone.saves[0])
    with pytest.raises(StorageError, match="plan 1: allow s3:PutObject"):
        node.store(alone)

    def hang(key, _):
        raise HangingError(key, "slow")

    assert new_node("a", calls=hang).store(alone) is False
    with pytest.raises(StorageError, match="No such file"):
        new_node("c").store(plan(1, "c"))


def test_what_is_not_retained_is_deleted_in_the_bucket_as_well(new_node, objects):
    """Weights go before metric states, and the folders of old evaluations as a whole; an error is reported."""
    node = new_node("a")
    plans = [plan(number, "a") for number in (1, 2, 3, 4)]
    for each in plans:
        save(node, each.saves[0], weights=b"w")
        assert node.store(each)
    odd = ("evaluations/x/plan-²/f", "evaluations/x/eval-1/f", "evaluations/x")
    objects.contents |= dict.fromkeys(odd, b"")
    result = node.tidy(CleanupRequest(drop=(plans[1].folder,), thin=(plans[2].folder,)))
    assert (result.failed, (node.root / plans[1].folder).exists()) == ({}, False)
    left = [key for key in objects.contents if key not in odd]
    assert [key for key in left if "plan-2/" in key or "plan-3/" in key] == [f"{plans[2].saves[0]}/states.json"]
    node.tidy(CleanupRequest(retained=RetainedStates(before=4, checkpoints=frozenset())))
    assert {key.split("/")[2] for key in objects.contents if key not in odd} == {"plan-4"}
    assert objects.contents.keys() >= set(odd)
    objects.broken = BucketError(errno.ETIMEDOUT, "the server answered 503")
    result = node.tidy(CleanupRequest(drop=(plans[3].folder,)))
    assert "503" in result.failed[plans[3].folder]


@pytest.mark.seconds
def test_examples_are_paired_by_what_the_bucket_holds(pair, tmp_path, use_bucket, monkeypatch):
    """Any machine fetches the columns of all nodes. Without an answer nothing is recorded."""
    server = use_bucket("moto_server")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    settings = Settings(
        checkpoint_dir=f"{server.url}/ckpts",
        state_dir=f"{server.url}/state",
        run="a",
    )
    storage = state_storage(settings)
    objects = settings.run_dir.objects
    for path in sorted(tmp_path.glob("evaluations/**/*.*")):
        objects.put(path.relative_to(tmp_path).as_posix(), path)
    nowhere = replace(objects.rules, bucket_endpoint="http://127.0.0.1:9")
    settings.state_dir.objects = replace(objects, rules=nowhere, _store=None)
    with pytest.raises(StorageError, match="saved values of plan 2"):
        ComparisonStore(storage, settings.run_dir, "test/accuracy").compare(*pair)
    settings.state_dir.objects = objects
    found = ComparisonStore(storage, settings.run_dir, "test/accuracy").compare(*pair)
    assert (found.rule, found.examples, found.better) == ("paired", COUNT, True)
    found = ComparisonStore(storage, settings.run_dir, "test/accuracy").compare(closed(3, 830), pair[0])
    assert (found.rule, "no saved predictions" in found.note) == ("intervals", True)
    assert len(storage.names("comparisons")) == 2
    assert inputs_of(settings.run_dir, pair, "test", [5, 999]) == {999: "a text"}
    assert not (tmp_path / "home").exists()
