"""Checkpoints and daemons that the tests of other rooms use as well, and a reconciler that is visited by hand."""

from pathlib import Path

import pytest
from checkpoints.conftest import clock, lying, new_catalog, pinned, pins, put, real_writer, recorded, root
from daemon.conftest import new_node, node
from fakes import FakeClock, Node
from heartbeats import make_heartbeat

from sidecar.daemon.storage_thread import Joined, JoinRun, Sync
from sidecar.protocol.records import folder_name
from sidecar.retention.pins.policy import PinDecision
from sidecar.retention.saves.retention import CleanupRequest

__all__ = [
    "clock",
    "lying",
    "new_catalog",
    "new_node",
    "node",
    "pinned",
    "pins",
    "put",
    "real_writer",
    "recorded",
    "root",
]


class Names:
    """These checkpoints are wanted; `settled` are those that the journal knows. Nothing is exported."""

    exports = ()

    def __init__(self, *wanted, settled=()) -> None:
        self.wanted = wanted
        self.before = 0
        self._settled = settled

    def decide(self, found) -> PinDecision:
        """Decide to pin and retain the checkpoints whose names are wanted."""
        keys = frozenset(key for key in found if key[0] in self.wanted)
        return PinDecision(keys, keys)

    def is_settled(self, _) -> bool:
        """Return that no checkpoint is settled."""
        return False

    def retains(self, key) -> bool:
        """Return whether the name of a checkpoint is wanted."""
        return key[0] in self.wanted

    def of_the_journal(self):
        """Return the same policy, since it does not depend on the journal."""
        return self

    def exported(self):
        """Return that no checkpoint is exported."""
        return {}

    def settled_as(self, folder):
        """Return the settled checkpoints whose pin has this folder name."""
        return [key for key in self._settled if folder_name(key) == folder]


class Looks:
    """The storage thread of a node whose run is open, visited by hand."""

    def __init__(self, folder, **settings) -> None:
        self.node = Node(folder, FakeClock(), **settings)
        self.node.checkpoint_dir.mkdir(parents=True)
        self.storage_thread, self.pinner = self.node.storage_thread, self.node.storage_thread.reconciler.pinner
        assert isinstance(self.storage_thread.answer(JoinRun()), Joined)

    def __call__(self, *wanted, seconds=2.0, settled=()):
        """One visit with a look, after some time."""
        self.node.clock.seconds += seconds
        beat = make_heartbeat(run=self.storage_thread.membership.journal.run)
        return self.storage_thread.answer(
            Sync(heartbeat=beat, scan=True, pin_policy=Names(*wanted, settled=settled), tidying=CleanupRequest())
        )

    @property
    def root(self) -> Path:
        """Return the checkpoint directory of the node."""
        return self.node.checkpoint_dir

    @property
    def pins(self) -> Path:
        """The folder of pins."""
        return self.node.run_dir / "pins"

    def pinned(self) -> list[str]:
        """The names of what is pinned."""
        return sorted(path.name.split("@")[0] for path in self.pins.glob("[!.]*"))


@pytest.fixture
def looks(tmp_path):
    return Looks(tmp_path)


def leave(looks, size=100_000, name=f".tmp-{'a' * 12}-{'b' * 8}-{'c' * 16}"):
    """Return what a copier that is gone for good left."""
    folder = looks.pins / name
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(b"\0" * size)
    return folder


@pytest.fixture
def victim(tmp_path):
    """A folder of somebody else's, as valuable as it looks like a pin."""
    folder = tmp_path / "victim"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "precious").write_bytes(b"p")
    (folder / "precious").write_bytes(b"p")
    return folder
