"""Real daemons that serve many runs: each checkpoint of each run is evaluated once, in fair turns."""

import json
import shutil
import signal
from collections import Counter

import pytest
from integration.conftest import TASKS, Daemon
from integration.test_buckets import Bucket, numbers
from integration.torch_trainer import TORCH
from numpy_trainer import NUMPY, NumpyTrainer
from prometheus_client.parser import text_string_to_metric_families

from sidecar.coordination.journal import read_history
from sidecar.coordination.storage import PosixStorage
from sidecar.publishing.report import rows

SETTINGS = NUMPY | {
    "SIDECAR_RUNS_SCAN_SECONDS": "0.5",
    "SIDECAR_RUN_TURN_SECONDS": "0.01",  # a turn for each evaluation
    "SIDECAR_VISIBILITY_SECONDS": "2",  # after which a directory is gone
    "SIDECAR_PIN_WAIT_SECONDS": "60",
    "SIDECAR_LEASE_SECONDS": "20",
}


@pytest.fixture
def trainer():
    made = NumpyTrainer()
    yield made
    made.close()


class Runs:
    """Runs below one folder, and the daemons that serve them."""

    def __init__(self, sidecar, folder):
        self._sidecar, self.folder = sidecar, folder
        self.folder.mkdir()

    def directory(self, name):
        """The checkpoints of a run."""
        return self.folder / name / "ckpts"

    def serve(self, node, *options, task="numpy_plain.py", **more):
        """A daemon of all runs."""
        runs = {"SIDECAR_RUNS": f"{self.folder}/*/ckpts", "SIDECAR_TASK": f"{TASKS / task}:task", "SIDECAR_NODE": node}
        program = self._sidecar.start("run", *options, **SETTINGS | runs | more)
        return Daemon(program.folder, program.process, run_dir=self.folder)

    def history(self, name):
        """The rows of `sidecar history` of a run."""
        return rows(read_history(PosixStorage(self.directory(name) / ".sidecar" / name)))

    def successes(self, name):
        """The names of the checkpoints that were evaluated, in order."""
        return [row["checkpoint"] for row in self.history(name) if row["status"] == "succeeded"]


@pytest.fixture
def runs(sidecar, tmp_path):
    return Runs(sidecar, tmp_path / "shared")


def state_of(daemon, name):
    return next((run for run in daemon.status()["runs"] if run["run"] == name), {}).get("state")


def families_of(daemon):
    return {each.name: each for each in text_string_to_metric_families(daemon.get("/metrics")[1])}


def evaluated_in(families):
    return {sample.labels["run"]: sample.value for sample in families["sidecar_checkpoints_evaluated"].samples}


def test_runs_come_fail_and_go_while_others_are_evaluated(runs, trainer, sidecar):
    """One page and one /metrics have all of them; no restart, and no run is hurt by another."""
    saved = {name: trainer.save(runs.directory(name), 1, 2) for name in ("a", "b")}
    broken = runs.directory("broken")
    broken.mkdir(parents=True)
    (broken / "sidecar.toml").write_text("replicas = 0\nhttp = '0.0.0.0:80'")
    daemon = runs.serve("worker-0", SIDECAR_STANDBY="true")
    daemon.until(lambda: len(runs.successes("a")) == len(runs.successes("b")) == 2, "evaluations of both runs")
    assert daemon.log("workers_taken_over"), "the turns changed"
    assert len(daemon.log("worker_started")) == 2, "a worker and a standby serve all runs"
    saved["c"] = trainer.save(runs.directory("c"), 7)
    shutil.rmtree(runs.directory("b").parent)
    daemon.until(lambda: runs.successes("c") and state_of(daemon, "b") is None, "a run that came, and one that went")
    assert [row["checkpoint"] for row in runs.history("a")] == [each["name"] for each in saved["a"]]
    (row,) = runs.history("c")
    assert row["metrics"]["test"]["accuracy"]["value"] == saved["c"][0]["correct"] / saved["c"][0]["examples"]

    (failed,) = [line for line in daemon.log("run_failed") if line["run"] == "broken"]
    assert "replicas" in failed["reason"]
    assert "http" in failed["reason"]
    assert state_of(daemon, "broken") == "failed"
    daemon.until(lambda: evaluated_in(families_of(daemon)) == {"a": 2, "c": 1}, "metrics as in the journal")
    families = families_of(daemon)
    states = [(s.labels["run"], s.labels["state"]) for s in families["sidecar_run_state"].samples if s.value]
    assert states == [("a", "serving"), ("broken", "failed"), ("c", "serving")]
    assert '<a href="/runs/a/">a</a>' in daemon.get("/")[1]
    assert daemon.get("/runs/a/")[0] == 200
    assert json.loads(daemon.get("/runs/c/api/status")[1])["evaluated"] == 1
    assert daemon.get("/runs/broken/")[0] == 503
    assert daemon.get("/readyz")[0] == 200
    assert len(daemon.log("task_checked")) == 1, "runs of one task share its check"

    environ = {"SIDECAR_RUNS": f"{runs.folder}/*/ckpts"} | NUMPY
    status = sidecar.command("status", "--json", **environ)
    listed = {run["run"]: run for run in json.loads(status.out)["runs"]}
    assert (listed["a"]["evaluated"], listed["c"]["evaluated"]) == (2, 1)
    assert "replicas" in listed["broken"]["error"]
    history = sidecar.command("history", "--run", "c", "--json", **environ)
    assert [row["checkpoint"] for row in json.loads(history.out)] == [saved["c"][0]["name"]]
    assert "--run" in sidecar.command("history", "--json", **environ).sentence

    assert daemon.end(signal.SIGTERM).code == 0


def test_once_evaluates_every_run_and_ends(runs, trainer):
    """As with one run, the exit code says whether all succeeded."""
    for name in ("a", "b"):
        trainer.save(runs.directory(name), 1)
    runs.directory("c").mkdir(parents=True)
    assert runs.serve("worker-0", "--once").wait().code == 0
    assert runs.successes("a") == runs.successes("b") == ["model-1.npz"]


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_runs_and_their_state_lie_in_a_bucket(torch_trainer, until, sidecar, start_bucket, tmp_path):
    """Worker processes of PyTorch evaluate each run in its turn, with the bits of a run in a directory."""
    task, bucket = TASKS / "torch_plain.py", start_bucket("localbucket")
    places = {name: Bucket(bucket, sidecar, tmp_path, task, TORCH, name) for name in ("exp-1", "exp-2")}
    environ = {"SIDECAR_RUNS": ",".join(place.url for place in places.values())}
    environ |= {"SIDECAR_STATE_DIR": f"{bucket.url}/state", "SIDECAR_RUN_TURN_SECONDS": "0.01"}
    environ |= {"XDG_STATE_HOME": str(tmp_path / "disk"), "SIDECAR_TASK": f"{task}:task", "SIDECAR_HTTP": "127.0.0.1:0"}
    environ |= bucket.environment | TORCH
    saved = {name: torch_trainer.save(tmp_path / name, 1, 2) for name in places}
    daemon = sidecar.start("run", **environ)
    for number in (0, 1):
        for name, place in places.items():
            place.upload(tmp_path / name / saved[name][number]["name"])
        count = 2 * number + 2
        until(lambda count=count: daemon.err.count('"evaluation_succeeded"') >= count, lambda: daemon.err, 500)
    daemon.process.terminate()
    assert daemon.wait().code == 0, daemon.err
    for name, place in places.items():
        history = sidecar.start("history", "--json", "--run", name, **environ).wait()
        assert numbers(history) == place.locally(tmp_path / name)


def second_before_first(histories):
    """The most runs that waited for their first result when another one got its second."""
    results = sorted(
        (row["completed_at"], name)
        for name, rows_of in histories.items()
        for row in rows_of
        if row["status"] == "succeeded"
    )
    served, worst = Counter(), 0
    for _, name in results:
        served[name] += 1
        if served[name] > 1:
            worst = max(worst, sum(not served[other] for other in histories))
    return worst


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_fifty_runs_on_two_nodes(runs, trainer):
    """Each checkpoint is evaluated once, in fair turns, while runs come and go and a daemon is killed."""
    names = [f"run-{number:02}" for number in range(50)]
    more = names[::5]
    for name in names:
        trainer.save(runs.directory(name), *((1, 2) if name in more else (1,)))
    first, second = runs.serve("worker-0"), runs.serve("worker-1")
    first.until(lambda: sum(map(len, map(runs.successes, names))) >= 20, "the first evaluations", 600)
    trainer.save(runs.directory("late"), 1)
    shutil.rmtree(runs.directory("run-49").parent)
    second.process.kill()
    second.wait()
    both = ["model-1.npz", "model-2.npz"]
    expected = {name: both[: 1 + (name in more)] for name in (*names[:-1], "late")}
    first.until(lambda: {name: runs.successes(name) for name in expected} == expected, "all evaluations", 1200)
    waited = second_before_first({name: runs.history(name) for name in names[:-1]})
    assert waited <= 4, "each of the two nodes has one run under way, and another one when it was killed"
    assert state_of(first, "run-49") is None
    assert first.end(signal.SIGTERM).code == 0
