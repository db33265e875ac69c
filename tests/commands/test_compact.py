"""A person moves a whole journal into segments: a dry run changes nothing, and the command says what it did."""

import pytest
from records import make_plan
from typer.testing import CliRunner

from sidecar.commands.cli import app
from sidecar.coordination.journal import Journal, plan_path
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.codec import dumps

PLANS = 3100


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A run with more plans than stay single files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ckpts").mkdir()
    storage = PosixStorage(tmp_path / "ckpts" / ".sidecar" / "ckpts")
    run = open_run(storage, 0.0)
    for number in range(1, PLANS + 1):
        plan = make_plan(
            number,
            None,
            run=run,
            nonce=f"nonce-{number}",
            attempt=0,
            members=None,
            task=None,
            proposer="worker-0",
            proposed_at="2027-01-15T08:16:30.000Z",
        )
        storage.replace(plan_path(number), dumps(plan))
    return storage


def typed(*words):
    done = CliRunner().invoke(app, ["compact", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.takes_turns(3)
def test_a_journal_is_moved_and_both_say_how_much(state):
    """The dry run first; the command takes the checkpoint directory or the state directory of the run."""
    told = typed("ckpts", "--dry-run")
    assert "would move 2,000 plans (2,000 files, 0.5 MB) into 2 segments" in told
    assert "1,100 single files would be left" in told
    assert len(state.names("plans")) == PLANS
    assert state.names("segments") == []
    told = typed(str(state.root))
    assert "moved 2,000 plans (2,000 files, 0.5 MB) into 2 segments" in told
    assert "removed 1,999 single files, 1,101 are left" in told
    journal = Journal(state, open_run(state, 0.0))
    assert [record.plan for record in journal.read_to_end()] == list(range(1, PLANS + 1))
    assert "nothing to move" in typed("ckpts")


def test_without_a_run_there_is_nothing_to_move(tmp_path):
    """The line that starts one is in the sentence."""
    (tmp_path / "ckpts").mkdir()
    assert "no daemon has started yet" in typed(str(tmp_path / "ckpts"))
