"""The whole state directory fails, is slow, or loses what was not flushed: what is known stays known, and goes on."""

import contextlib
import signal
import time

import pytest
from faulty import READS, WRITES

pytestmark = pytest.mark.timeout(900)

SETTINGS = {"SIDECAR_STORAGE_TIMEOUT_SECONDS": "10", "SIDECAR_STALL_SECONDS": "60", "SIDECAR_LEASE_SECONDS": "20"}
LATE_SECONDS = 2
AGAIN_SECONDS = 10  # for which a fault lasts


@pytest.fixture
def stored(new_trial, faulty, tmp_path):
    """A training whose state directory lies on storage that fails where a test says so."""
    (tmp_path / "disk" / "state").mkdir()
    return new_trial(state=faulty.path / "state")


def start(stored, *nodes, **more):
    for node in nodes:
        stored.start(node, "--state-dir", stored.run_dir.parent, **SETTINGS | more)


def unready(stored, until, words):
    """Wait until each daemon says why it is not ready; it is healthy all the same."""
    daemons = stored.living().values()

    def look():
        with contextlib.suppress(OSError):  # a busy machine
            return all(code == 503 and words in said for code, said in (each.get("/readyz") for each in daemons))
        return False

    until(
        look,
        lambda: f"/readyz to say {words!r}; they said:\n{stored.words()}",
    )
    assert all(daemon.get("/healthz") == (200, "ok\n") for daemon in daemons)


@pytest.mark.parametrize(
    ("error", "words", "remedy"),
    [
        ("EIO", "Input/output error", "check the storage that holds it"),
        ("ESTALE", "Stale file handle", "mount it again"),
        ("EACCES", "Permission denied", "let the user with id"),
    ],
)
@pytest.mark.parametrize("operations", ["reads", "writes"])
def test_all_of_the_state_fails_for_a_while(stored, faulty, until, error, words, remedy, operations):
    """Both daemons say so once, with the remedy; what was saved meanwhile is evaluated afterwards, once."""
    start(stored, "worker-0", "worker-1")
    stored.save()
    stored.evaluated()
    with faulty.failing("", error, *(READS if operations == "reads" else WRITES)):
        stored.save(2)
        unready(stored, until, words)
        time.sleep(AGAIN_SECONDS)
    stored.evaluated()
    for daemon in stored.living().values():
        assert len(daemon.log("storage_failed")) <= 6
        daemon.logged("storage_recovered")
    # What is being written when removals begin to fail stays for a day. A name is looked up before it is removed.
    stored.judge(words, remedy, failures=2, unfinished=True)


def test_each_call_to_the_state_takes_two_seconds(stored, faulty):
    """Slow is not broken: what comes is evaluated, late, and nobody is given up."""
    start(stored, "worker-0", SIDECAR_STORAGE_TIMEOUT_SECONDS="60", SIDECAR_LEASE_SECONDS="120")
    stored.save()
    stored.evaluated()
    with faulty.failing("", LATE_SECONDS, "open", "create", "rename", "link"):
        stored.save()
        stored.evaluated()
    stored.judge(failures=2)


@pytest.mark.parametrize("names", [False, True], ids=["content", "names"])
def test_the_power_fails(stored, faulty, until, tmp_path, new_trial, names):
    """Both nodes are gone at once, and with them all that was not flushed. A success that was seen is still there."""
    start(stored, "worker-0", "worker-1")
    stored.save(3)
    stored.evaluated()
    stored.save(4)
    until(lambda: len([row for row in stored.rows() if row["status"] == "succeeded"]) >= 4, "one more success")
    for daemon in stored.living().values():
        daemon.process.send_signal(signal.SIGKILL)
    for daemon in stored.daemons.values():
        daemon.wait()
    until(lambda: not stored.strays(), lambda: f"processes to end: {stored.strays()}")
    before = [row for row in stored.rows() if row["status"] == "succeeded"]
    faulty.lose_power(names=names)
    after = new_trial(state=tmp_path / "disk" / "state")
    after.saved = stored.saved
    assert [row for row in after.rows() if row["status"] == "succeeded"] == before
    for node in ("worker-0", "worker-1"):
        after.start(node, "--state-dir", tmp_path / "disk" / "state", **SETTINGS)
    after.judge(failures=2, unfinished=True)
