"""Sweep what killed daemons left unfinished, a folder at a time, once a day."""

import pytest

from sidecar.coordination.unfinished_writes import UnfinishedWrites
from sidecar.errors import StorageError

DAY = 86400.0


class Folders:
    """Storage that notes what it is to sweep."""

    def __init__(self):
        self.swept, self.fails = [], False

    def names(self, folder):
        """Return the evaluations of two checkpoints."""
        assert folder == "evaluations"
        return ["ckpt-1", "ckpt-2"]

    def sweep(self, folder, before):
        """Note the folder and the time."""
        if self.fails:
            raise StorageError("cannot list plans: Input/output error")
        self.swept.append((folder, before))


@pytest.fixture
def folders():
    return Folders()


def test_each_folder_is_swept_once_a_day(folders):
    """Sweep one folder in each call, and only files that are a day old on the storage's clock."""
    writes = UnfinishedWrites(folders)
    for now in range(20):
        writes.sweep(float(now), 5 * DAY)
    names = [name for name, _ in folders.swept]
    assert len(names) == len(set(names))
    assert {"", "plans", "outcomes", "evaluations/ckpt-1", "evaluations/ckpt-2"} < set(names)
    assert {before for _, before in folders.swept} == {4 * DAY}
    writes.sweep(DAY + 1, 6 * DAY)
    assert len(folders.swept) == len(names) + 1


def test_nothing_is_swept_while_the_time_of_storage_is_unknown(folders):
    """Compare no file with this machine's clock."""
    UnfinishedWrites(folders).sweep(0.0, None)
    assert folders.swept == []


def test_an_error_of_storage_ends_nothing(folders):
    """Go on with the next folder."""
    writes, folders.fails = UnfinishedWrites(folders), True
    writes.sweep(0.0, 5 * DAY)
    folders.fails = False
    writes.sweep(1.0, 5 * DAY)
    assert len(folders.swept) == 1
