"""A worker is killed while it evaluates the second eval set: the next attempt does not evaluate the first one again."""

import os
import signal

from numpy_trainer import NUMPY

from sidecar.protocol.records import FINISHED_SETS


def test_a_worker_is_killed_in_the_second_set(sidecar, numpy_trainer, tmp_path):
    """Both sets have the same examples, so their numbers are equal to the bit, interrupted or not."""
    gate, folder = tmp_path / "gate", tmp_path / "ckpts"
    gate.mkdir()
    (gate / "hold-evaluate").touch()
    daemon = sidecar.run(folder, "--replicas", 2, task="numpy_sets.py", GATE=str(gate), **NUMPY)
    (saved,) = numpy_trainer.save(folder, 100)
    daemon.until(lambda: len(list(gate.glob("at-evaluate-*"))) == 2, "both ranks in the second set")
    numbers = [int(line) for line in (gate / "slow").read_text().split()]
    assert set(numbers) >= set(range(0, saved["examples"], 8))
    (gate / "slow").write_text("")
    os.kill(int(next(gate.glob("at-evaluate-*")).name.rpartition("-")[2]), signal.SIGKILL)
    (gate / "hold-evaluate").unlink()
    row = daemon.evaluated(saved)[saved["name"]]
    seen = {int(line) for line in (gate / "slow").read_text().split()}
    assert seen <= set(range(8)), "models are compared on a first batch and on some of its examples"
    (lost,) = (each for each in daemon.history() if each["status"] == "failed")
    assert (lost["kind"], row["workers"]) == ("worker_died", 2)
    assert row["metrics"]["slow"] == row["metrics"]["gated"]
    assert row["metrics"]["slow"]["accuracy"]["value"] == saved["correct"] / saved["examples"]
    daemon.until(lambda: not list(folder.glob(f".sidecar/**/{FINISHED_SETS}")), "finished sets to go")

    (gate / "hold-evaluate").touch()
    (again,) = numpy_trainer.save(folder, 200)
    partial = daemon.until(lambda: (daemon.status()["plan"] or {}).get("partial"), "a set that is finished")
    gauges = daemon.until(lambda: daemon.samples("sidecar_eval_partial_metric"), "its gauges")
    shown = daemon.status()
    assert (shown["evaluated"], shown["evaluation"]["step"]) == (1, 100)
    assert all(best["step"] == 100 for best in shown["best"].values())
    assert "Partial" in daemon.get("/")[1]
    said = sidecar.command("status", folder)
    assert "partial, other sets follow: slow accuracy" in said.out, said
    (gate / "hold-evaluate").unlink()
    row = daemon.evaluated(again)[again["name"]]
    assert partial == {"slow": {"examples": again["examples"], "metrics": row["metrics"]["slow"]}}
    values = {name: value["value"] for name, value in row["metrics"]["slow"].items()}
    assert gauges == {(("eval_set", "slow"), ("metric", name)): value for name, value in values.items()}
    daemon.until(lambda: not daemon.samples("sidecar_eval_partial_metric"), "no gauge of a plan that is closed")
    assert daemon.end(signal.SIGTERM).code == 0
