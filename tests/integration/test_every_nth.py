"""Two eval sets in one daemon's journal and gauges, one of which takes part in every second evaluation only."""

import signal

import pytest
from numpy_trainer import NUMPY


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rare") / "ckpts"


def shown(daemon):
    """The gauges of each set: its accuracy, the examples behind it, and the step that both are of."""
    names = ("sidecar_eval_metric", "sidecar_eval_examples", "sidecar_eval_set_checkpoint_step")
    metric, examples, step = (daemon.samples(name) for name in names)
    return {
        eval_set: (
            metric.get((("eval_set", eval_set), ("metric", "accuracy"))),
            examples.get((("eval_set", eval_set),)),
            step.get((("eval_set", eval_set),)),
        )
        for eval_set in ("test", "rare")
    }


@pytest.mark.nightly
def test_a_set_takes_part_in_every_second_evaluation(sidecar, numpy_trainer, folder):
    """All sets first; then its gauges stay and say so; a restart goes on counting where the journal ends."""
    daemon = sidecar.run(folder, "--replicas", 2, task="numpy_rare.py", **NUMPY)
    saved = []
    for step in (100, 150):
        saved += numpy_trainer.save(folder, step)
        daemon.evaluated(*saved)
    first, second = ((each["correct"] / each["examples"], each["examples"], each["step"]) for each in saved)
    assert first[0] != second[0]
    expected = {"test": second, "rare": first}
    daemon.until(lambda: shown(daemon) == expected, lambda: f"gauges {expected}, not {shown(daemon)}")
    assert daemon.end(signal.SIGTERM).code == 0

    daemon = sidecar.run(folder, task="numpy_rare.py", **NUMPY)
    daemon.until(lambda: shown(daemon) == expected, lambda: f"gauges {expected} after a restart, not {shown(daemon)}")
    saved += numpy_trainer.save(folder, 300)
    rows = daemon.evaluated(*saved)
    assert [sorted(rows[each["name"]]["examples"]) for each in saved] == [["rare", "test"], ["test"], ["rare", "test"]]
    for each in (saved[0], saved[2]):  # the same data: the same bits
        metrics = rows[each["name"]]["metrics"]
        assert metrics["rare"] == metrics["test"]
    assert [rows[each["name"]]["changed"] for each in saved] == [[], [], []]
    third = (saved[2]["correct"] / saved[2]["examples"], saved[2]["examples"], 300)
    daemon.until(lambda: shown(daemon) == {"test": third, "rare": third}, lambda: f"gauges of 300, not {shown(daemon)}")
