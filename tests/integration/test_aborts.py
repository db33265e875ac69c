"""A checkpoint at which the worker process aborts: it is given up as corrupt, and holds up no other."""

import shutil

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.nightly]


def test_a_worker_that_aborts_while_it_restores(sidecar, writer, place, tmp_path):
    """Those that are saved meanwhile are evaluated between its attempts; it ends in words of ours."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (real,) = writer.save(elsewhere, 10)
    for part in ("data-00000-of-00001", "index"):
        shutil.copy(elsewhere / f"{real['name']}.{part}", place / f"bad-5.{part}")
    daemon = sidecar.run(place, task="aborts.py")
    daemon.logged("plan_failed")
    daemon.evaluated(*writer.save(place, 20, 30))

    def given_up():
        return [row for row in daemon.history() if row["checkpoint"] == "bad-5" and row["status"] == "corrupt"]

    daemon.until(given_up, "bad-5 to be given up")
    rows = [row for row in daemon.history() if row["status"] != "corrupt"]
    failed = [row for row in rows if row["checkpoint"] == "bad-5"]
    assert [row["kind"] for row in failed] == ["crashed"] * 3
    assert "SIGABRT" in failed[0]["message"]
    assert rows[1]["status"] == "succeeded", "after its first failure another one went first"
