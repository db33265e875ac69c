"""A checkpoint at which the worker process aborts: it is given up as corrupt, and holds up no other."""

from numpy_trainer import NUMPY

BAD = "model-bad-5.npz"


def test_a_worker_that_aborts_while_it_restores(sidecar, numpy_trainer, place, tmp_path):
    """Those that are saved meanwhile are evaluated between its attempts; it ends in words of ours."""
    (real,) = numpy_trainer.save(tmp_path / "elsewhere", 5)
    (tmp_path / "elsewhere" / real["name"]).rename(place / BAD)
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "hold-restore").touch()
    daemon = sidecar.run(place, task="numpy_aborts.py", GATE=str(gate), **NUMPY)
    daemon.until(lambda: list(gate.glob("at-restore-*")), "the first attempt")
    saved = numpy_trainer.save(place, 20, 30)
    pins = daemon.run_dir / "pins"
    daemon.until(lambda: all(list(pins.glob(f"{each['name']}@*")) for each in saved), "pins of those saved meanwhile")
    (gate / "hold-restore").unlink()
    daemon.evaluated(*saved)

    def given_up():
        return [row for row in daemon.history() if row["checkpoint"] == BAD and row["status"] == "corrupt"]

    daemon.until(given_up, f"{BAD} to be given up")
    rows = [row for row in daemon.history() if row["status"] != "corrupt"]
    failed = [row for row in rows if row["checkpoint"] == BAD]
    assert [row["kind"] for row in failed] == ["crashed"] * 3
    assert "SIGABRT" in failed[0]["message"]
    assert rows[1]["status"] == "succeeded", "after its first failure another one went first"
