"""`Task(evaluate=…)` with a real daemon of two workers: everywhere that numbers go, and every way to fail."""

import csv
import io
import json

import pytest

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
