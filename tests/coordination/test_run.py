"""Create the identity of a run once, and notice another one."""

import json
import threading

import pytest
from coordination.conftest import Crashing, lose

from sidecar.coordination.run import RUN_PATH, check_run, open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import RecordError, StateUnavailableError, StorageError, StorageLostError


def test_the_first_daemon_names_the_run_and_the_others_join_it(storage):
    """The id is created once, is random, and carries the time for people."""
    run = open_run(storage, 0.0)
    assert open_run(storage, 1.0) == run
    assert len(run) == 32
    standing = json.loads(storage.read("run.json"))
    assert standing["created_at"] == "1970-01-01T00:00:00.000Z"
    assert (standing["schema"], standing["run"]) == (1, run)
    check_run(storage, run)


def test_daemons_that_start_together_join_one_run(storage):
    """All carry the id of the run that was created first."""
    barrier = threading.Barrier(8)
    runs = []

    def start():
        barrier.wait(timeout=240)
        runs.append(open_run(PosixStorage(storage.root), 0.0))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert len(runs) == 8
    assert len(set(runs)) == 1


def test_a_state_directory_that_was_replaced_or_wiped_is_lost(storage, run, put):
    """Another id, or none, means that this daemon's numbers mean nothing there; it may come back."""
    file = put("run.json", b'{"schema":1,"run":"other","nonce":"n"}')
    with pytest.raises(StateUnavailableError, match=rf"run\.json.*\bother\b.*{run}"):
        check_run(storage, run)
    file.unlink()
    with pytest.raises(StateUnavailableError, match=r"run\.json.*gone"):
        check_run(storage, run)


@pytest.mark.parametrize(
    ("content", "remedy"),
    [(b"", "put it back"), (b"{", "put it back"), (b'{"schema":2,"run":"r","nonce":"n"}', "update")],
)
def test_a_run_file_that_cannot_be_understood_is_named(storage, put, content, remedy):
    """Torn, or of a newer version: the daemon does not begin a run of its own over it."""
    put("run.json", content)
    with pytest.raises(RecordError, match=rf"^run\.json: .*{remedy}"):
        open_run(storage, 0.0)


def test_a_run_that_its_creator_had_not_made_durable_is_not_joined(storage):
    """The daemon that read it starts once more, and finds the run that is there then."""
    open_run(storage, 0.0)
    with pytest.raises(StorageError, match=r"run\.json.*gone"):
        open_run(Crashing(storage, ["run.json"]), 0.0)
    assert open_run(storage, 0.0, new_id=lambda: "the next") == "the next"


@pytest.mark.usefixtures("evaluated")
def test_a_journal_without_its_run_is_not_begun_anew(storage):
    """A purge by age takes run.json first: its records would be in the way of a new run's."""
    lose(storage, RUN_PATH)
    with pytest.raises(StorageLostError, match=r"run\.json.*plans/000000000001\.json"):
        open_run(storage, 0.0)
    assert storage.read(RUN_PATH) is None
