"""Ask a run from outside: any node will do, and no daemon needs to be alive."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar.coordination.journal import Journal
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.records import Plan, Settlement

pytestmark = pytest.mark.takes_turns(3)

SIDECAR = Path(sys.executable).with_name("sidecar")
FAILED, SETTINGS, STORAGE, INTERRUPTED = 1, 2, 4, 130


@pytest.fixture
def chief(sidecar, place):
    """A daemon that starts no process; it has beaten."""
    daemon = sidecar.run(place, "--role", "chief", "--node", "chief-0")
    daemon.until((daemon.run_dir / "members" / "chief-0.json").exists, "a heartbeat")
    return daemon


@pytest.fixture(scope="module")
def beating(sidecar, tmp_path_factory):
    """The same for tests that leave it alive, and its checkpoint directory."""
    place = tmp_path_factory.mktemp("beating") / "ckpts"
    place.mkdir()
    daemon = sidecar.run(place, "--role", "chief", "--node", "chief-0")
    daemon.until((daemon.run_dir / "members" / "chief-0.json").exists, "a heartbeat")
    yield daemon, place
    assert daemon.process.poll() is None


def test_a_heartbeat_has_the_load_of_the_machine(beating):
    """By processor, so that machines of any size can be compared."""
    daemon, _ = beating
    found = json.loads((daemon.run_dir / "members" / "chief-0.json").read_bytes())["load"]
    assert 0 <= found < 1000
    assert isinstance(found, float)


@pytest.mark.parametrize("command", [("status",), ("history",), ("requeue", "ckpt-5")])
def test_a_mistyped_directory(sidecar, tmp_path, command):
    """One sentence, and nothing is created."""
    done = sidecar.command(*command, "--checkpoint-dir", tmp_path / "ckpst")
    assert done.code == SETTINGS
    assert f"{tmp_path / 'ckpst'}' does not exist" in done.sentence
    assert "name the directory" in done.sentence
    assert not (tmp_path / "ckpst").exists()


def test_a_directory_without_a_run(sidecar, place):
    """Training may have just begun: that is no mistake."""
    done = sidecar.command("status", "--checkpoint-dir", place)
    assert done.code == 0
    assert done.out.startswith("run ckpts: no daemon has started yet; `")
    assert json.loads(sidecar.command("status", "--checkpoint-dir", place, "--json").out)["run_id"] is None
    assert "no daemon has started yet; `" in sidecar.command("history", "--checkpoint-dir", place).out
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        pytest.param(("status", "--json"), marks=pytest.mark.nightly),
        pytest.param(("history",), marks=pytest.mark.nightly),
        ("requeue", "ckpt-5"),
    ],
)
def test_storage_that_hangs(sidecar, faulty, until, command):
    """A sentence, within the bound. The kernel lets the process go when its filesystem does."""
    place = faulty.path / "ckpts"
    folder = place / ".sidecar" / "ckpts"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    with faulty.failing("/run.json", "hang"):
        program = sidecar.start(*command, "--checkpoint-dir", place, SIDECAR_STORAGE_TIMEOUT_SECONDS="1")
        until(lambda: program.err, "a sentence", 30)
    done = program.wait(240)
    assert done.code == STORAGE
    assert f"{folder} has not answered for 1 s (storage_timeout_seconds)" in done.sentence


def test_check_where_storage_hangs(sidecar, faulty, until):
    """The other trials are made all the same."""
    place = faulty.path / "ckpts"
    folder = place / ".sidecar" / "ckpts"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    words = ("check", "--checkpoint-dir", place, "--node", "a", "--role", "chief")
    with faulty.failing("/run.json", "hang"):
        program = sidecar.start(*words, SIDECAR_STORAGE_TIMEOUT_SECONDS="1")
        until(lambda: "task        not needed" in program.out, "the last trial", 30)
    done = program.wait(240)
    assert done.code == FAILED
    assert f"FAIL nodes       {folder} has not answered for 1 s" in done.out
    assert "ok   task        not needed" in done.out


def test_status_tells_the_living_from_the_dead(sidecar, chief, place):
    """A file written a moment ago is a daemon; one that was killed is soon silent, and one that ended has left."""

    def member():
        (found,) = json.loads(sidecar.command("status", "--checkpoint-dir", place, "--json").out)["nodes"]
        return found

    alive = chief.until(lambda: (found := member())["fresh"] and found, "a heartbeat that is known to be new")
    assert (alive["node"], alive["role"], alive["changed"]) == ("chief-0", "chief", True)
    not_looked = sidecar.command("status", "--checkpoint-dir", place, "--json", "--no-wait")
    assert json.loads(not_looked.out)["nodes"][0]["fresh"] in {True, None}
    chief.end(signal.SIGKILL)
    time.sleep(2.6)  # longer than a beat and its quarter
    killed = member()
    assert (killed["fresh"], killed["changed"], killed["state"]) == (None, False, "ready")
    assert killed["silent_seconds"] > 1.0
    shown = sidecar.command("status", "--checkpoint-dir", place)
    assert shown.code == 0
    assert "the daemons seem to be down" in shown.out
    successor = sidecar.run(place, "--role", "chief", "--node", "chief-0")
    successor.until(lambda: member()["fresh"], "a successor that beats")
    assert successor.end(signal.SIGTERM).code == 0
    assert (member()["state"], member()["fresh"]) == ("left", False)


def test_watch_prints_block_after_block_until_it_is_interrupted(sidecar, beating):
    """Not on a terminal: each look is a new block, or a line of JSON."""
    chief, place = beating
    words = ("status", "--checkpoint-dir", place, "--watch", "--every", "0.2")
    blocks, lines = sidecar.start(*words), sidecar.start(*words, "--json")
    chief.until(lambda: blocks.out.count("run ckpts") >= 3, "three blocks")
    chief.until(lambda: lines.out.count("\n") >= 3 and '"fresh": true' in lines.out, "three lines, and a change in one")
    for program in (blocks, lines):
        done = program.end(signal.SIGINT)
        assert done.code == INTERRUPTED
        assert done.err == ""
    assert [json.loads(line)["nodes"][0]["node"] for line in lines.out.splitlines()][:3] == ["chief-0"] * 3


def test_watch_on_a_terminal_renews_what_it_shows(sidecar, beating, tmp_path):
    """In place, on a screen of its own. Ctrl-C ends it, and the last look stays."""
    chief, place = beating
    ours, theirs = pty.openpty()
    words = ["status", "--checkpoint-dir", str(place), "--watch", "--every", "0.2"]
    environ = sidecar.environ(tmp_path, TERM="xterm", COLUMNS="80")
    with subprocess.Popen([SIDECAR, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        shown = b""

        def looks():
            nonlocal shown
            shown += os.read(ours, 65536)
            return shown.count(b"chief-0") >= 3

        chief.until(looks, "three looks")
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal is closed when the command has ended
            while block := os.read(ours, 65536):
                shown += block
        assert process.wait(240) == INTERRUPTED
    os.close(ours)
    live, _, stays = shown.partition(b"\x1b[?1049l")
    assert live.startswith(b"\x1b[?1049h")
    assert live.count(b"\x1b[H") >= 3
    assert b"chief-0" in stays
    assert b"Traceback" not in shown


def test_watch_outlives_storage_that_fails(sidecar, chief, place):
    """It tells so, and goes on when storage is back."""
    watching = sidecar.start("status", "--checkpoint-dir", place, "--watch", "--every", "0.1")
    chief.until(lambda: "chief-0" in watching.out, "a block")
    members = chief.run_dir / "members"
    members.rename(members.with_name("moved"))
    members.write_text("")
    chief.until(lambda: "there is a file where a folder is expected" in watching.err, "the reason")
    members.unlink()
    members.with_name("moved").rename(members)
    blocks = watching.out.count("run ckpts")
    chief.until(lambda: watching.out.count("run ckpts") > blocks + 1, "another block")
    assert watching.end(signal.SIGINT).code == INTERRUPTED


def test_check_measures_who_beats(sidecar, beating):
    """From a node of another name; without a task it fails, and says what else it found."""
    _, place = beating
    words = ("check", "--checkpoint-dir", place, "--node", "worker-7", "--role", "worker")
    done = sidecar.start(*words, SIDECAR_TRUST_SAVED_GRAPH="true").wait()
    assert done.code == FAILED
    told = " ".join(done.out.split())
    assert re.search(
        r"heartbeats of chief-0 are seen every \d+\.\d s, at most \d\.\d s late; the lease of 5 s is enough", told
    )
    assert "FAIL task none is set" in told
    assert "ok graphs trust_saved_graph is on: SavedModels are run as they were stored" in told
    assert f"ok state {place / '.sidecar' / 'ckpts'} on " in told


def test_check_of_a_directory_that_is_not_there_creates_nothing(sidecar, tmp_path):
    """Training may create it later; a typing error must not."""
    done = sidecar.command("check", "--checkpoint-dir", tmp_path / "ckpts", "--node", "a", "--role", "chief")
    assert done.code == 0
    assert "does not exist yet" in done.out
    assert "no other node is alive here" in done.out
    assert not (tmp_path / "ckpts").exists()


@pytest.mark.parametrize("name", [os.fsdecode(b"no\xfftext-5.h5"), "\x1b[31mred-5.h5"], ids=ascii)
def test_names_do_nothing_to_terminals(sidecar, place, name):
    """Neither codes nor bytes that are no text, in what is found and in what is asked for."""
    (place / name).write_bytes(b"broken")
    done = sidecar.command("check", "--checkpoint-dir", place, "--node", "a", "--role", "chief")
    assert done.code == 0, done.err
    assert f"{name!r}"[1:-1] in done.out
    told = sidecar.command("requeue", name, "--checkpoint-dir", place)
    assert told.code != 0
    for text in (done.out, done.err, told.out, told.err):
        assert "\x1b[31m" not in text
        assert "Traceback" not in text


def test_requeue_says_odd_names_as_well(sidecar, chief, place):
    """After it has written the journal nothing may go wrong."""
    name = os.fsdecode(b"no\xff\x1b[31mtext-5")
    chief.end(signal.SIGTERM)
    storage = PosixStorage(chief.run_dir)
    journal = Journal(storage, read_run(storage))
    settles = (Settlement(name=name, digest="d" * 64, step=5, verdict="failed", reason="because", task=None),)
    assert journal.propose(
        Plan(
            plan=1,
            run=journal.run,
            nonce="n",
            checkpoint=None,
            attempt=0,
            members=None,
            settles=settles,
            task=None,
            proposer="n1",
            proposed_at="now",
        )
    )
    (place / f"{name}.index").write_bytes(b"broken")
    done = sidecar.command("requeue", name, "--checkpoint-dir", place, "--no-wait")
    assert done.code == 0, done.err
    assert "no\\udcff\\x1b[31mtext-5 is requeued" in done.out
