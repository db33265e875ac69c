"""A run as its files tell it: storage, a catalog, and a journal that tests write."""

import os
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from catalogs import make_catalog
from commands.journal_files import Writers
from fakes import FakeClock
from journals import Journal as MiniatureJournal
from journals import settlement
from retention.saves.conftest import LABELS, closed, save, scores

from sidecar.commands import cli
from sidecar.commands.status.collect import RunObserver
from sidecar.commands.status.render import lines
from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.evaluation.data.example_inputs import thumbnail
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint, group_id


@pytest.fixture(autouse=True)
def zone():
    """Times are local ones for people: those of the test do not depend on the machine's zone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def storage(tmp_path):
    return PosixStorage(tmp_path / "state")


@pytest.fixture
def place(tmp_path):
    """Create an empty checkpoint directory."""
    (tmp_path / "ckpts").mkdir()
    return tmp_path / "ckpts"


@pytest.fixture
def catalog(tmp_path, clock, place):
    return make_catalog(place, tmp_path / "state" / "pins", quiet_seconds=3, clock=clock)


@pytest.fixture
def observer(storage, catalog, clock):
    return RunObserver(storage, catalog, clock, lease_seconds=10.0)


@pytest.fixture
def run(storage):
    return open_run(storage, 0.0)


@pytest.fixture
def writers(storage, run):
    return Writers(storage, run)


def as_checkpoint(step, digest="e"):
    """Return a checkpoint by the number of its step."""
    return Checkpoint(name=f"ckpt-{step}", digest=digest * 64, step=step, format="tf_object")


@pytest.fixture
def checkpoint():
    """`as_checkpoint`, for most tests."""
    return as_checkpoint


@pytest.fixture
def journal():
    """An empty journal in memory."""
    return MiniatureJournal()


@pytest.fixture
def settle():
    """Return a function that makes settlements."""
    return settlement


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory, and no setting from outside."""
    for name in [name for name in os.environ if name.startswith("SIDECAR_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def type_(here, monkeypatch, capsys):
    """Type a command: its exit code, what it printed, what it said on standard error."""
    monkeypatch.setenv("COLUMNS", "80")
    assert list(here.iterdir()) == []

    def type_(*words):
        sys.argv[:] = ["sidecar", *map(str, words)]
        with pytest.raises(SystemExit) as ended:
            cli.run_command()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return type_


def shown(found, width=100):
    """Return what a person sees."""
    from rich.console import Console, Group

    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(Group(*lines("mnist", found)))
    return captured.get()


@pytest.fixture
def compared(tmp_path):
    """A directory of checkpoints with two evaluations, of which the second answers 60 more right."""
    root = tmp_path / "ckpts" / ".sidecar" / "ckpts"
    root.mkdir(parents=True)
    storage = PosixStorage(root)
    run = open_run(storage, 0.0)
    for number, right in ((1, 800), (2, 860)):
        one = closed(number, right)
        result = replace(one.outcome.result, group=group_id(one.plan.members))
        outcome = replace(one.outcome, run=run, result=result)
        one = replace(one, plan=replace(one.plan, run=run, evaluated=number - 1), outcome=outcome)
        inputs = {} if right > 800 else {801: "a text\nof two lines", 802: thumbnail(np.zeros((8, 8)))}
        save(root, one, {"y": LABELS, "predictions": scores(right)}, inputs=inputs)
        storage.create(plan_path(number), dumps(one.plan))
        storage.create(outcome_path(number), dumps(one.outcome))
    return tmp_path / "ckpts"
