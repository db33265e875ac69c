"""The archive is read when somebody asks for it, once, and no request waits for storage."""

import threading
import time

import pytest
from served_run import ServedRun, value

from sidecar.coordination.storage import PosixStorage
from sidecar.errors import StorageError
from sidecar.publishing import report
from sidecar.publishing.evaluation_archive import reader as module
from sidecar.publishing.evaluation_archive.details import DetailsReader
from sidecar.publishing.evaluation_archive.evaluations import ArchivedEvaluations
from sidecar.publishing.evaluation_archive.reader import ArchiveReader, ArchiveTiming

PATIENCE_SECONDS = 240.0


class Watched(PosixStorage):
    """Storage that counts what is read, and that hangs or fails on demand."""

    def __init__(self, root):
        super().__init__(root)
        self.paths, self.error = [], None
        self.go_on = threading.Event()
        self.go_on.set()

    def read(self, path, limit=None):
        """Count, wait, and perhaps fail."""
        self.paths.append(path)
        assert self.go_on.wait(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        return super().read(path, limit)


@pytest.fixture
def run(tmp_path):
    """A run with five evaluations, whose reader watches storage."""
    run = ServedRun(tmp_path)
    run.storage = Watched(tmp_path)
    run.archive = run.publisher.deliver = None
    run.others = set(threading.enumerate())
    run.archive = ArchiveReader(DetailsReader(run.storage, tmp_path), timing=ArchiveTiming(first_pause_seconds=0.01))
    run.publisher.deliver = [run.archive.update]
    for number in range(1, 6):
        evaluate(run, number)
    run.tell()
    run.storage.paths.clear()
    return run


def evaluate(run, number):
    run.plan(f"ckpt-{number}", 10 * number)
    run.succeed({"test": {"accuracy": value(number / 10)}})


def until(condition):
    """Wait until something holds, and return it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def is_read(archive):
    return archive.progress()["state"] == "read"


def reads(run):
    """Return whether the archive of a run has a thread, which holds what it read."""
    return bool({each for each in threading.enumerate() if each.name == "archive"} - run.others)


def plans(run):
    return run.archive.read(lambda archive: [row.plan for row in archive.rows])


def test_a_daemon_that_nobody_looks_at_reads_nothing(run):
    """There is no thread either, and nothing is held."""
    evaluate(run, 6)
    run.tell()
    assert run.storage.paths == []
    assert not reads(run)


def test_everything_is_read_once(run):
    """The first question starts it; later ones cost nothing, and new entries come from the loop."""
    assert plans(run) == []
    until(lambda: is_read(run.archive))
    assert plans(run) == [1, 2, 3, 4, 5]
    read = len(run.storage.paths)
    evaluate(run, 6)
    run.tell()
    until(lambda: plans(run) == [1, 2, 3, 4, 5, 6])
    assert len(run.storage.paths) == read


def test_the_rows_are_those_of_the_history(run):
    """Whether they were read from storage or came from the loop."""
    until(lambda: is_read(run.archive))
    evaluate(run, 6)
    run.plan("ckpt-7", 70)
    run.fail()
    run.tell()
    until(lambda: len(plans(run)) == 7)
    rows = run.archive.read(lambda archive: [row.as_json() for row in archive.rows])
    expected = [{key: row[key] for key in rows[0]} for row in report.rows(run.history)]
    assert rows == expected


def test_no_request_waits_for_storage(run):
    """While storage hangs, every question is answered at once, and the answer says how far the journal was read."""
    run.storage.go_on.clear()
    before = time.monotonic()
    assert run.archive.progress() == {"state": "reading", "share": 0.0, "reason": None}
    assert run.archive.read(ArchivedEvaluations.series) == []
    assert run.archive.details(3) is None
    evaluate(run, 6)
    run.tell()
    assert time.monotonic() - before < 5
    run.storage.go_on.set()
    until(lambda: len(plans(run)) == 6)


def test_storage_that_fails(run):
    """The reason is shown, and it is tried again."""
    run.storage.error = StorageError("the disk is away")
    until(lambda: run.archive.progress()["state"] == "failing")
    assert "the disk is away" in run.archive.progress()["reason"]
    run.storage.error = None
    until(lambda: is_read(run.archive))
    assert plans(run) == [1, 2, 3, 4, 5]


def test_storage_that_fails_is_not_asked_for_ever(run):
    """Without requests the thread ends, although it could not read the journal."""
    run.storage.error = StorageError("the disk is away")
    until(lambda: run.archive.progress()["state"] == "failing")
    run.archive.timing = ArchiveTiming(first_pause_seconds=0.01, idle_seconds=0.0)
    until(lambda: not reads(run))


def test_entries_that_the_loop_no_longer_has(run):
    """A gap between what was read and what the loop still holds is read from storage."""
    until(lambda: is_read(run.archive))
    run.history.log.keep = 2
    for number in range(6, 20):
        evaluate(run, number)
    run.tell()
    until(lambda: plans(run) == [*range(1, 20)])


def test_a_run_that_began_anew(run, tmp_path):
    """Its entries replace those of the run before."""
    until(lambda: is_read(run.archive))
    for path in [*tmp_path.glob("*/*.json"), tmp_path / "run.json"]:
        path.unlink()
    other = ServedRun(tmp_path)
    other.archive, other.publisher.deliver = run.archive, [run.archive.update]
    evaluate(other, 9)
    other.tell()
    until(lambda: run.archive.read(lambda archive: [row.checkpoint for row in archive.rows]) == ["ckpt-9"])


def test_details(run):
    """Everything about one evaluation, read on demand and held for the next question."""
    found = until(lambda: run.archive.details(3))
    assert found["metrics"]["test"]["accuracy"]["hex"] == (0.3).hex()
    assert [member["node"] for member in found["members"]] == ["worker-0", "worker-1"]
    assert found["data"]["test"]["fingerprint"] == "9" * 64
    assert found["profile"]["tensorflow"] == "2.20.0"
    assert found["log"] is None
    read = len(run.storage.paths)
    assert run.archive.details(3) is found
    assert len(run.storage.paths) == read


def test_details_are_bounded(run):
    """Only those that somebody looked at last are held."""
    for number in range(6, 6 + module.DETAILS_KEPT + 5):
        evaluate(run, number)
    run.tell()
    for number in range(1, module.DETAILS_KEPT + 6):
        until(lambda number=number: run.archive.details(number))
    assert run.archive.details(module.DETAILS_KEPT + 5) is not None
    assert run.archive.details(1) is None, "it is read anew"


def test_no_such_evaluation(run):
    """A plan that does not exist, or has not ended, is not waited for."""
    until(lambda: is_read(run.archive))
    run.plan("ckpt-6", 60)
    run.tell()
    for plan in (6, 99, 10**17):
        with pytest.raises(LookupError):
            run.archive.details(plan)


def test_records_that_are_damaged(run, tmp_path):
    """The details of that evaluation cannot be shown; the others can."""
    until(lambda: is_read(run.archive))
    (tmp_path / "outcomes/000000000002.json").write_text("{")
    assert until(lambda: refusal(run, 2)).startswith("the records of plan 2")
    assert until(lambda: run.archive.details(1))


def refusal(run, plan):
    try:
        run.archive.details(plan)
    except LookupError as error:
        return str(error)
    return None


def test_it_forgets_everything_when_nobody_looks(run):
    """The thread ends; the next question starts anew."""
    run.archive.timing = ArchiveTiming(idle_seconds=0.05)
    until(lambda: is_read(run.archive))
    until(lambda: not reads(run))
    run.archive.timing = ArchiveTiming()
    until(lambda: is_read(run.archive))
    assert plans(run) == [1, 2, 3, 4, 5]
