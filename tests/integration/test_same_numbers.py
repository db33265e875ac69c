"""One run's numbers, read from every place that shows them: the same bits everywhere, however awkward the number.

The reference is the journal, as `sidecar history --json` prints it.
"""

import csv
import ctypes
import io
import json
import math
import sys
import time
import warnings
from datetime import datetime
from urllib.parse import urlencode

import pytest
from mlflow_server import PROGRAMS, MlflowServer
from numpy_trainer import NUMPY
from prometheus_server import PrometheusServer
from tensorboard_reader import read_events

pytestmark = pytest.mark.takes_turns(3)

STEPS = (10, 20, 30)
BOUNDS = ("value", "lower", "upper")


def bits(number):
    """The exact text of a number; of one that is not finite, its name."""
    return number.hex() if math.isfinite(number) else str(float(number))


@pytest.fixture(scope="module")
def prometheus(needs, tmp_path_factory):
    with PrometheusServer(needs("prometheus"), tmp_path_factory.mktemp("prometheus")) as made:
        yield made


@pytest.fixture(scope="module")
def mlflow(needs, tmp_path_factory):
    with MlflowServer(needs("mlflow", PROGRAMS), tmp_path_factory.mktemp("mlflow")) as made:
        yield made


@pytest.fixture(scope="module")
def run(sidecar, numpy_trainer, prometheus, mlflow, tmp_path_factory):
    """A daemon that has evaluated three checkpoints, and delivered them to every sink."""
    folder = tmp_path_factory.mktemp("same")
    settings = NUMPY | {
        "SIDECAR_REMOTE_WRITE": prometheus.receiver,
        "SIDECAR_TENSORBOARD_DIR": str(folder / "tensorboard"),
        "SIDECAR_MLFLOW_TRACKING_URI": mlflow.uri,
        "SIDECAR_HOOKS": json.dumps({"result": ["sh", "-c", f"cat >> {folder}/hook; echo >> {folder}/hook"]}),
        "SIDECAR_BEST_METRIC": "test/accuracy",
        "SIDECAR_EXPORT_BEST": "3",
        "SIDECAR_SINK_TIMEOUT_SECONDS": "20",
    }
    daemon = sidecar.run(folder / "ckpts", task="numpy_awkward.py", **settings)
    daemon.evaluated(*numpy_trainer.save(folder / "ckpts", *STEPS))
    pending = lambda: daemon.samples("sidecar_sink_pending_results").values()  # noqa: E731
    daemon.until(lambda: set(pending()) == {0.0}, "all sinks to have all results")
    daemon.logged("checkpoint_exported", len(STEPS))
    daemon.place = folder
    yield daemon
    daemon.process.kill()


@pytest.fixture(scope="module")
def numbers(run, sidecar):
    """All numbers by (step, metric, bound), as the journal has them."""
    rows = json.loads(sidecar.command("history", run.place / "ckpts", "--json").out)
    found = {
        (row["step"], metric, bound): value["hex"] if bound == "value" else bits(value[bound])
        for row in rows
        for metric, value in row["metrics"]["test"].items()
        for bound in BOUNDS
        if value[bound] is not None or bound == "value"
    }
    assert len(rows) == len(STEPS)
    assert {"inf", "nan", "0x0.0p+0", (5e-324).hex()} <= set(found.values())
    return found


def of_bound(numbers, bound, step=None):
    """The numbers of one bound; of one step, by metric."""
    chosen = {key: number for key, number in numbers.items() if key[2] == bound}
    if step is None:
        return {(key[0], key[1]): number for key, number in chosen.items()}
    return {key[1]: number for key, number in chosen.items() if key[0] == step}


def test_export_prints_them(run, sidecar, numbers):
    """Exact text, and decimals that Python reads back to the same bits: two tables and JSON lines."""
    place = run.place / "ckpts"
    tables = [
        *(
            list(csv.DictReader(io.StringIO(sidecar.command(*command).out)))
            for command in (
                ("export", place),
                ("history", place, "--csv"),
            )
        ),
        [json.loads(line) for line in sidecar.command("export", place, "--format", "jsonl").out.splitlines()],
    ]
    for table in tables:
        assert {(int(row["step"]), row["metric"]): row["hex"] for row in table} == of_bound(numbers, "value")
        assert {
            (int(row["step"]), row["metric"], bound): bits(float(row[bound]))
            for row in table
            for bound in BOUNDS
            if row[bound] not in ("", None)
        } == numbers


@pytest.mark.parametrize("bound", BOUNDS)
def test_prometheus_stores_them(prometheus, numbers, bound):
    """Sent by remote write: a sample for each result, at the time of its completion."""
    name = {"value": "sidecar_result"}.get(bound, f"sidecar_result_{bound}")
    series = prometheus.series(f"{name}[1h]", time.time())
    steps = {at: int(float(step)) for at, step in prometheus.samples("sidecar_result_step[1h]", time.time())}
    assert {
        (steps[at], each["metric"]["metric"]): bits(float(number)) for each in series for at, number in each["values"]
    } == of_bound(numbers, bound)


def test_openmetrics_has_them(run, sidecar, numbers):
    """The file for promtool."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    text = sidecar.command("export", run.place / "ckpts", "--format", "openmetrics").out
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    steps = {str(each.timestamp): int(each.value) for each in families["sidecar_result_step"]}
    for bound in BOUNDS:
        name = {"value": "sidecar_result"}.get(bound, f"sidecar_result_{bound}")
        assert {
            (steps[str(each.timestamp)], each.labels["metric"]): bits(each.value) for each in families[name]
        } == of_bound(numbers, bound)


@pytest.mark.parametrize("bound", BOUNDS)
def test_gauges_show_the_newest(run, numbers, bound):
    """`/metrics`, read by Prometheus' own parser for Python."""
    name = "sidecar_eval_metric" if bound == "value" else f"sidecar_eval_metric_{bound}"
    shown = {dict(labels)["metric"]: bits(number) for labels, number in run.samples(name).items()}
    assert shown == of_bound(numbers, bound, STEPS[-1])


def test_the_status_documents_show_the_newest(run, sidecar, numbers):
    """`/api/status` and `sidecar status --json`."""
    by_command = json.loads(sidecar.command("status", run.place / "ckpts", "--json", "--no-observe").out)
    for document in (run.status(), by_command):
        shown = document["evaluation"]["metrics"]["test"]
        assert {metric: value["hex"] for metric, value in shown.items()} == of_bound(numbers, "value", STEPS[-1])
        assert all(value["value"] is None or bits(value["value"]) == value["hex"] for value in shown.values())


def test_tables_show_five_digits_of_them(run, sidecar, numbers):
    """`sidecar history` for people: each number as it is rounded there."""
    shown = sidecar.command("history", run.place / "ckpts", COLUMNS="400").out
    lines = {
        int(line.split()[0]): line for line in shown.splitlines() if line.split()[:1] in ([str(step)] for step in STEPS)
    }
    for (step, metric), number in of_bound(numbers, "value").items():
        rounded = number if number in ("nan", "inf") else f"{float.fromhex(number):.5g}"
        assert rounded in lines[step].split(), metric


def test_tensorboard_shows_the_nearest_floats(run, numbers):
    """TensorBoard has 32 bits for a number: its reader finds the float that is nearest."""
    shown = read_events(run.place / "tensorboard" / "test")
    found = {(each.step, tag): bits(each.value) for tag in shown.Tags()["scalars"] for each in shown.Scalars(tag)}
    assert found == {
        (step, metric if bound == "value" else f"{metric}/{bound}"): bits(ctypes.c_float(float.fromhex(number)).value)
        for (step, metric, bound), number in numbers.items()
    }


def test_mlflow_stores_them(mlflow, numbers, monkeypatch):
    """Its own client finds every bit; infinity is the largest float there, as MLflow's page about metrics says."""
    monkeypatch.setenv("no_proxy", "*")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own deprecations, at import
        from mlflow.tracking import MlflowClient
    client = MlflowClient(mlflow.uri)
    (found,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    stored = {
        (each.step, name.removeprefix("test/")): bits(each.value)
        for name in found.data.metrics
        for each in client.get_metric_history(found.info.run_id, name)
    }
    largest = sys.float_info.max.hex()
    plain = {
        key: largest if number == "inf" else number for key, number in numbers.items() if not key[1].startswith("odd")
    }
    assert {
        (step, metric if bound == "value" else f"{metric}_{bound}"): number
        for (step, metric, bound), number in plain.items()
    }.items() <= stored.items()
    odd = {number for key, number in stored.items() if key[1].startswith("odd")}
    assert odd == {number for key, number in numbers.items() if key[1].startswith("odd")}


def test_hooks_get_them(run, numbers):
    """The event that a command reads."""
    events = [json.loads(line) for line in (run.place / "hook").read_text().splitlines() if line]
    assert {
        (event["checkpoint"]["step"], metric): value["hex"]
        for event in events
        for metric, value in event["metrics"]["test"].items()
    } == of_bound(numbers, "value")


def test_manifests_of_exports_have_them(run, numbers):
    """All three checkpoints are exported here."""
    manifests = [json.loads(path.read_text()) for path in run.run_dir.glob("exports/*@*/manifest.json")]
    assert {
        (manifest["step"], metric): value["hex"]
        for manifest in manifests
        for metric, value in manifest["metrics"]["test"].items()
    } == of_bound(numbers, "value")


def test_curves_and_evaluations_have_them(run, numbers):
    """The answers of which the page draws its curves and details."""

    def answer(path, **query):
        return json.loads(run.get(f"{path}?{urlencode(query)}")[1])

    def curve(metric):
        return run.until(
            lambda: (found := answer("/api/curve", set="test", metric=metric)).get("steps") and found, metric
        )

    for metric in of_bound(numbers, "value", STEPS[-1]):
        drawn = curve(metric)
        exact = of_bound(numbers, "value")
        shown = [bits(float.fromhex(number)) for number in drawn["hex"]]
        assert dict(zip(drawn["steps"], shown, strict=True)) == {step: exact[step, metric] for step in STEPS}
    for row in run.successes():
        look = lambda: (found := answer("/api/evaluation", plan=row["plan"])).get("metrics") and found  # noqa: B023, E731
        shown = run.until(look, "the details of an evaluation")["metrics"]["test"]
        assert {metric: value["hex"] for metric, value in shown.items()} == of_bound(numbers, "value", row["step"])


def test_a_browser_shows_them(run, numbers, needs):
    """Chromium: each number of each evaluation, rounded to be read, with its exact text behind it."""
    path = needs("chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    url = run.logged("daemon_started")[0]["http"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root has no sandbox
        for row in run.successes():
            page = browser.new_page()
            page.goto(f"{url}/#evaluation-{row['plan']}")
            for key, number in numbers.items():
                if key[0] == row["step"]:
                    shown = page.locator(f"data[value='{number}']").first
                    shown.wait_for(state="attached", timeout=60_000)
                    rounded = number if number in ("nan", "inf") else f"{float.fromhex(number):.5g}"
                    assert shown.text_content() == rounded, key
            page.close()
        browser.close()


def test_times_are_those_of_completion(run, prometheus):
    """The journal's times are those of the samples, to the millisecond."""
    completed = [datetime.fromisoformat(row["completed_at"]).timestamp() for row in run.successes()]
    stored = [at for at, _ in prometheus.samples("sidecar_result_step[1h]", time.time())]
    assert stored == [pytest.approx(at, abs=0.0011) for at in completed]
