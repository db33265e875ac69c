"""With the state in a bucket, the best checkpoints are there whole, and pins are uploaded once."""

from dataclasses import replace

import pytest
from daemon.conftest import clock, new_node, node
from fakes import pass_time
from retention.exports.conftest import RULE, evaluate, exporting, pinned, requeue

from sidecar.checkpoints.inspect import verify
from sidecar.retention.exports.export_folder import opened_exports
from sidecar.retention.exports.exports import Exports
from sidecar.retention.pins.disk_budget import DiskBudget
from sidecar.system.bucket_folder import BucketState
from sidecar.system.confined import open_folder
from sidecar.system.object_store import BucketError, ObjectStore

__all__ = ["clock", "exporting", "new_node", "node"]

pytestmark = pytest.mark.seconds


class CutOff(ObjectStore):
    """A bucket that takes no index of the first checkpoint."""

    def put(self, key, data, **more):
        """Write any other object."""
        if key.endswith("ckpt-1.index"):
            raise BucketError(5, "no answer", key)
        return super().put(key, data, **more)


class SecondInOrder(Exports):
    """The exports of a node after another one that should upload, and does not."""

    def export(self, checkpoint, policy):
        """Export as the second one does."""
        return super().export(checkpoint, replace(policy, before=1))


@pytest.fixture
def bucket(use_bucket):
    """The objects of a run on a real server."""
    return ObjectStore(scheme="s3", bucket=use_bucket("moto_server").url.partition("://")[2], prefix="state/run")


@pytest.fixture
def remote(exporting, bucket):
    """A node that retains the two best checkpoints in the bucket."""
    exporting.exports.root = BucketState(exporting.run_dir)
    exporting.exports.root.objects = bucket
    return exporting


def keys(bucket):
    return {found.key.partition("/")[2] for found in bucket.listing("exports")}


def names(node):
    with opened_exports(node.exports.root) as exports:
        return sorted(name.split("@")[0] for name in exports.names()), (exports.best() or "").split("@")[0]


def test_the_best_two_are_in_the_bucket_and_only_there(remote, bucket, tmp_path):
    """A better one takes the place of a worse one, an object names the best, and manifests say their places."""
    evaluate(remote, 0.9, 0.5, 0.7)
    assert (names(remote), pinned(remote)) == ((["ckpt-1", "ckpt-3"], "ckpt-1"), [])
    assert not (remote.run_dir / "exports").exists()
    evaluate(remote, 0.95, first=4)
    assert names(remote) == (["ckpt-1", "ckpt-4"], "ckpt-4")
    assert {key.partition("@")[0] for key in keys(bucket)} == {"ckpt-1", "ckpt-4", "best.json"}
    with opened_exports(remote.exports.root) as exports, open_folder(tmp_path) as folder:
        found = {name.split("@")[0]: exports.manifest(name) for name in exports.names()}
        assert {name: each.ranks for name, each in found.items()} == {
            "ckpt-1": {"test/accuracy": 2},
            "ckpt-4": {"test/accuracy": 1},
        }
        (name,) = (name for name in exports.names() if name.startswith("ckpt-4"))
        assert exports.is_whole(name, found["ckpt-4"])
        exports.fetch(name, folder.folder("fetched", make=True))
        assert exports.bytes() >= sum(file.size for each in found.values() for file in each.files) > 0
    assert verify(tmp_path / "fetched", "ckpt-4")[:12] == name.rpartition("@")[2]


def test_a_requeued_one_is_not_fetched_onto_a_disk_without_room(remote):
    """It takes as much room as any other pin. The reason is told, and it is fetched once there is room."""
    evaluate(remote, 0.9, 0.8)
    requeue(remote, "ckpt-1")
    remote.exports.room = DiskBudget(keep_free=1000, free=lambda: remote.free)
    remote.free = 10
    pass_time(10, remote)
    assert any("keep_free_bytes" in str(fields) for _, fields in remote.log.events)
    assert pinned(remote) == []
    remote.free = 1 << 30
    pass_time(20, remote)
    assert remote.history.newest.plan.checkpoint.name == "ckpt-1"


def test_a_requeued_one_is_fetched_and_measured_again(remote):
    """Training may have deleted it. It stays in the bucket, and its pin goes once it has its new number."""
    evaluate(remote, 0.9, 0.8)
    requeue(remote, "ckpt-1")
    remote.numbers["ckpt-1"] = replace(remote.numbers["ckpt-2"], value=0.1, hex=(0.1).hex())
    pass_time(20, remote)
    assert (names(remote), pinned(remote)) == ((["ckpt-1", "ckpt-2"], "ckpt-2"), [])


@pytest.mark.parametrize("later", [(), (0.95, 0.96)])
def test_an_upload_that_was_cut_off_is_finished_or_removed(remote, bucket, later):
    """The pin stays until the last object is there; a part that nobody wants any more goes."""
    root = remote.exports.root
    root.objects = CutOff(scheme="s3", bucket=bucket.bucket, prefix=bucket.prefix)
    evaluate(remote, 0.9)
    assert (names(remote), pinned(remote)) == (([], ""), ["ckpt-1"])
    assert {key.rpartition("/")[2] for key in keys(bucket)} == {"ckpt-1.data-00000-of-00001", "manifest.json"}
    evaluate(remote, *later, first=2)
    root.objects = bucket
    pass_time(40, remote)
    left = ["ckpt-2", "ckpt-3"] if later else ["ckpt-1"]
    assert (names(remote), pinned(remote)) == ((left, left[-1]), [])
    assert {key.partition("@")[0] for key in keys(bucket)} == {*left, "best.json"}


def test_the_first_node_uploads_and_another_takes_over(remote):
    """A node later in the order waits some scans for each one before it."""
    second = SecondInOrder(remote.exports.root, remote.storage, RULE)
    remote.storage_thread.reconciler.pinner.exports = second
    evaluate(remote, 0.9)
    assert (names(remote), pinned(remote)) == (([], ""), ["ckpt-1"])
    pass_time(20, remote)
    assert (names(remote), pinned(remote)) == ((["ckpt-1"], "ckpt-1"), [])
