"""Say how long an evaluation usually takes, and that a machine is busy."""

import pytest

from sidecar.commands.status.collect import RunStatus
from sidecar.commands.status.render import plan_line
from sidecar.commands.waiting import busy_among, busy_here, usual_seconds
from sidecar.settings import Settings


@pytest.mark.parametrize(("load", "told"), [(2.9, ""), (26.4, "(load 26 on 2 cores)")])
def test_a_busy_machine(load, told):
    """More processes want to run than there are processors for."""
    assert told in busy_here(load, 2)
    assert bool(busy_here(load, 2)) == bool(told)


def test_only_a_node_that_evaluates_says_that_it_is_busy(tmp_path):
    """The load of this machine says nothing about other machines."""
    settings = Settings(checkpoint_dir=tmp_path, node="node-0")
    assert busy_among(settings, {"node-0", "node-1"}) == busy_here()
    assert busy_among(settings, {"node-1"}) == ""


def test_the_usual_time(journal):
    """Take the newest evaluations; failures do not count."""
    assert usual_seconds(journal.history) is None
    journal.plan()
    journal.fail()
    assert usual_seconds(journal.history) is None
    journal.evaluate("ckpt-6", 600)
    assert usual_seconds(journal.history) == 1.5
    journal.plan("ckpt-7", step=700)
    assert ", usually 2 s, " in plan_line(RunStatus(run_id="r", history=journal.history))
