"""`Task(evaluate=…)` with a real daemon of two workers: everywhere that numbers go, and every way to fail."""

import csv
import io
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.takes_turns(3)

SETTINGS = {
    "SIDECAR_FRAMEWORK": "python",
    "SIDECAR_CHECKPOINT_PATTERN": "model-*.json",
    "SIDECAR_QUIET_SECONDS": "0.2",
    "SIDECAR_REPLICAS": "2",
    "SIDECAR_MAX_ATTEMPTS": "1",
    "SIDECAR_EXPORT_BEST": "1",
    "SIDECAR_BEST_METRIC": "harness/score",
    "SIDECAR_EARLY_STOP_PATIENCE": "2",
}


@pytest.fixture(scope="module")
def watching(sidecar, tmp_path_factory):
    """A daemon that is ready, and the folder that it watches."""
    folder = tmp_path_factory.mktemp("functions") / "ckpts"
    folder.mkdir()
    hooks = json.dumps({"best": f"tee -a {folder.parent}/best"})
    daemon = sidecar.run(
        folder,
        task="functions.py",
        SIDECAR_HOOKS=hooks,
        SIDECAR_TENSORBOARD_DIR=str(folder.parent / "logs"),
        **SETTINGS,
    )
    daemon.logged("task_checked")
    yield daemon, folder
    daemon.process.kill()


def save(folder, step, value, does=None):
    (folder / ".unfinished").write_text(json.dumps({"value": value, "does": does}))
    (folder / ".unfinished").rename(folder / f"model-{step}.json")
    return {"name": f"model-{step}.json"}


def values(row):
    return {f"{name}/{key}": each["value"] for name, found in row["metrics"].items() for key, each in found.items()}


def test_numbers_go_wherever_those_of_eval_sets_go(watching, sidecar):
    """The best one is found and exported; a set without a number of examples has none."""
    daemon, folder = watching
    saved = [save(folder, step, value) for step, value in ((1, 5), (2, 7), (3, 6))]
    found = daemon.evaluated(*saved)
    assert values(found["model-2.json"]) == {"harness/score": 7, "speed/seconds": 3, "hits/acc": 0.7}
    assert found["model-2.json"]["examples"] == {"harness": 40, "hits": 100}
    assert "not checked for repeatability" in found["model-2.json"]["notes"][0]
    best = daemon.status()["best"]
    assert (best["harness/score"]["checkpoint"], best["speed/seconds"]["goal"]) == ("model-2.json", "min")
    assert "hits/acc" not in best
    assert set(daemon.samples("sidecar_eval_examples").values()) == {40, 100}
    daemon.until((daemon.run_dir / "exports" / "best").exists, "an export")
    manifest = json.loads((daemon.run_dir / "exports" / "best" / "manifest.json").read_text())
    assert (manifest["checkpoint"], manifest["examples"]) == ("model-2.json", {"harness": 40, "hits": 100})
    rows = list(csv.DictReader(io.StringIO(sidecar.command("export", folder).out)))
    assert [row["examples"] for row in rows if row["plan"] == rows[0]["plan"]] == ["40", "", "100"]
    assert "speed" in sidecar.command("history", folder).out
    daemon.until((folder.parent / "best").exists, "the hook")
    assert list((folder.parent / "logs").rglob("*tfevents*"))


def test_training_is_told_to_stop(watching):
    """After evaluations that are no improvement, and enough of them to be a fall."""
    daemon, folder = watching
    daemon.evaluated(*(save(folder, step, value) for step, value in ((4, 4), (5, 2), (6, 0))))
    assert "harness/score" in daemon.logged("early_stop_signalled")[0]["reason"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("step", "does", "words"),
    [
        (11, "raise", "ValueError: the harness has no data (raised while Task(evaluate={'harness': …}) ran)"),
        (12, "hang", "evaluate_timeout_seconds=2"),
        (13, "nothing", "found None"),
        (14, "many", "10000 numbers"),
    ],
)
def test_a_function_that_fails_is_named(watching, step, does, words):
    """The next checkpoint is evaluated by new workers."""
    daemon, folder = watching
    save(folder, step, 1, does)

    def failed():
        return [line for line in daemon.log("plan_failed") if line["checkpoint"] == f"model-{step}.json"]

    (line, *_) = daemon.until(failed, "the failure")
    assert line["kind"] == "task_error"
    assert words in line["message"]


def test_odd_numbers_and_names_are_published_as_they_are(watching, sidecar):
    """NaN is noted and is never the best; other names each time are other series; odd names harm no view."""
    daemon, folder = watching
    saved = [save(folder, 21, 1, "nan"), save(folder, 22, 2, "other names"), save(folder, 23, 3, "odd names")]
    found = daemon.evaluated(*saved)
    assert "score: not finite" in str(found["model-21.json"]["notes"])
    assert values(found["model-22.json"])["harness/score of 2"] == 2
    assert "there is no such number" in str(found["model-22.json"]["notes"])
    assert daemon.status()["best"]["harness/score"]["checkpoint"] == "model-2.json"
    status, page = daemon.get("/")
    assert (status, "a/b\n<script>" in page) == (200, False)
    assert daemon.samples("sidecar_eval_metric")
    for command in (("export",), ("export", "--format", "openmetrics"), ("history",), ("status",)):
        assert sidecar.command(*command, folder).code == 0


def test_a_requeued_checkpoint_is_measured_again(watching, sidecar):
    """A task with its own evaluate function measures a requeued checkpoint again."""
    daemon, folder = watching
    daemon.evaluated(save(folder, 31, 3))
    assert sidecar.command("requeue", folder / "model-31.json", "--again", **SETTINGS).code == 0
    daemon.until(lambda: len([row for row in daemon.history() if row["checkpoint"] == "model-31.json"]) > 1, "a second")


class Runner(ThreadingHTTPServer):
    """Evaluates the checkpoints whose paths it gets, each in two looks; a job whose step is odd fails once."""

    def __init__(self):
        self.jobs, self.looks = Counter(), Counter()
        super().__init__(("127.0.0.1", 0), Handler)

    def answer(self, path, body):
        """Return the answer to a request."""
        if path == "/jobs":
            checkpoint = json.loads(body)["checkpoint"]
            self.jobs[checkpoint] += 1
            return {"job": checkpoint}
        checkpoint = Path(path.removeprefix("/jobs/").replace("%2F", "/").replace("%40", "@").replace("%3A", ":"))
        self.looks[str(checkpoint)] += 1
        if self.looks[str(checkpoint)] == 1:
            return {"state": "running"}
        value = json.loads(checkpoint.read_text())["value"]
        if value % 2 and self.jobs[str(checkpoint)] == 1:
            return {"state": "failed", "reason": "a machine of the runner is gone"}
        return {"state": "done", "numbers": {"acc": value / 10, "examples": 40}}


class Handler(BaseHTTPRequestHandler):
    """Passes requests to the runner."""

    def do_POST(self):
        """Begin a job."""
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self):
        """Say how far a job is."""
        self._answer(b"")

    def _answer(self, body):
        data = json.dumps(self.server.answer(self.path, body)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Write no log."""


def test_a_runner_on_another_machine(sidecar, tmp_path):
    """The task of the docs: a pinned path goes there, numbers come back, and a job that failed is tried again."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "other-libraries.md").read_text()
    code = re.search(r"<!-- runner_task.py -->\n```python\n(.*?)```", page, re.DOTALL)[1]
    (tmp_path / "runner_task.py").write_text(code.replace("time.sleep(2)", "time.sleep(0.1)"))
    folder = tmp_path / "ckpts"
    folder.mkdir()
    with Runner() as runner:
        thread = threading.Thread(target=runner.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        words = ["run", folder, "--task", f"{tmp_path / 'runner_task.py'}:task", "--stop-after-step", "2"]
        settings = {name: value for name, value in SETTINGS.items() if name < "SIDECAR_M" or "REPLICAS" in name}
        try:
            program = sidecar.start(*words, RUNNER=f"http://127.0.0.1:{runner.server_port}", **settings)
            for step, value in ((1, 5), (2, 8)):
                save(folder, step, value)
            ended = program.wait()
        finally:
            runner.shutdown()
            thread.join()
    assert ended.code == 0, ended.err
    rows = json.loads(sidecar.command("history", folder, "--json").out)
    found = [(row["step"], row["status"], values(row).get("suite/acc")) for row in rows]
    assert sorted(found, key=str) == [(1, "failed", None), (1, "succeeded", 0.5), (2, "succeeded", 0.8)]
    assert "a machine of the runner is gone" in next(row["message"] for row in rows if row["status"] == "failed")
    assert all("/pins/" in path for path in runner.jobs)
