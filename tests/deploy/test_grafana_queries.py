"""Every query of the dashboards, run against a real Prometheus that scrapes real daemons."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from deploy.dashboard_queries import ALL, FILES, GRAFANA, Prometheus, joined, load, open_url, panel, panels_of
from prometheus_client import CollectorRegistry, ProcessCollector

from sidecar.coordination.journal import read_history
from sidecar.coordination.storage import PosixStorage
from sidecar.publishing.prometheus import Exporter
from sidecar.publishing.report import rows
from sidecar.publishing.result_series import FAMILIES as RESULT_FAMILIES

pytestmark = pytest.mark.takes_turns(3)

RULES = GRAFANA.parent / "prometheus" / "rules"
SIDECAR = (sys.executable, "-P", "-c", "from sidecar.commands.cli import main; main()")
TASK = Path(__file__).parents[1] / "tasks" / "graded.py"
ACCURACIES = (40, 55, 70, 85)
"""Percent, of one checkpoint after the other."""
SCRAPE_SECONDS = 1
INTERVAL = 60  # seconds: of panels that show a day
HOLD_SECONDS = 22.0  # panels and annotations look every 10 s
PATIENCE_SECONDS = 600.0
ENVIRON = {  # no one's settings
    name: value for name, value in os.environ.items() if not name.startswith(("SIDECAR_", "TF_CONFIG"))
} | {
    "SIDECAR_FRAMEWORK": "python",
    "SIDECAR_CHECKPOINT_PATTERN": "model-*.json",
    "SIDECAR_LOG_FORMAT": "json",
    "SIDECAR_EARLY_STOP_PATIENCE": "9",  # more evaluations than there are: the signal is exported, and is never there
    "GRADED_BATCH_SECONDS": "0.3",  # 20 batches and two worker processes: each evaluation is scraped several times
}

RARE = re.compile(r"Data changed|by class|by slice|NaN or infinity|Lag B$")
"""Queries about what this run never does: test_grafana_samples.py has series for them."""


@pytest.fixture(params=FILES)
def board(request):
    return load(request.param)


def test_every_metric_is_exported_or_recorded():
    """No query asks for a series that nobody makes."""
    registry = CollectorRegistry()
    exporter = Exporter(registry, process_metrics=False)
    names = {name for family in exporter.describe() for name in (family.name, *_with_suffixes(family))}
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    names |= {sample.name for family in process.collect() for sample in family.samples}
    recorded = "".join(each.read_text() for each in RULES.iterdir())
    names |= set(re.findall(r"^\s*- record: (\S+)$", recorded, re.MULTILINE))
    names |= {"ALERTS", "ALERTS_FOR_STATE", "up", *RESULT_FAMILIES}
    for query in ALL:
        named = "|".join(re.findall(r'__name__=~"([^"]*)"', query.expr))
        bare = re.sub(r'"[^"]*"', "", query.expr) + named
        used = set(re.findall(r"\b(?:sidecar[_:][\w:]+|process_\w+|ALERTS\w*|up\b)", bare))
        assert used, query.where
        assert used <= names, (query.where, used - names)


def _with_suffixes(family):
    return [
        family.name + suffix
        for suffix in {"counter": ("_total",), "histogram": ("_sum", "_count")}.get(family.type, ())
    ]


class Run(Prometheus):
    """A chief's daemon and a worker's, the checkpoints that a training would save, a Prometheus that scrapes both."""

    def __init__(self, folder, prometheus):
        self.folder, self._prometheus = folder, prometheus
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()
        self.start = time.time()
        self._processes, self._spoiled = [], set()
        super().__init__(SCRAPE_SECONDS, run=self.checkpoints.name, eval_set="test", others="loss")

    @property
    def said(self):
        """Return what the daemons wrote into their logs."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("daemon-*.out")))

    def spawn(self, name, *command):
        """Start a process of its own session, output to a file."""
        with (self.folder / f"{name}.out").open("wb") as output:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=ENVIRON | {"SIDECAR_REMOTE_WRITE": f"http://{self.address}/api/v1/write"},
                cwd=self.folder,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def close(self):
        """End the daemons and Prometheus as Ctrl-C does."""
        for process in self._processes:
            process.send_signal(signal.SIGINT)
        for process in self._processes:
            try:
                process.wait(240)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def until(self, condition, what):
        """The condition's first true value, while everything runs."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if found := condition():
                return found
            for process in self._processes:
                assert process.poll() is None, f"{process.args} ended before {what}:\n{self.said[-4000:]}"
            time.sleep(0.2)  # every look may be a request to a daemon, which takes its time to answer
        pytest.fail(f"waited in vain for {what}:\n{self.said[-4000:]}")

    def start_daemons(self):
        """Start one of each role, as `sidecar demo` does."""
        for role in ("chief", "worker"):
            options = ("--role", role, "--node", role, "--host", "127.0.0.1", "--http", "127.0.0.1:0")
            words = ("run", "--checkpoint-dir", self.checkpoints, "--task", f"{TASK}:task", "--replicas", "2", *options)
            self.spawn(f"daemon-{role}", *SIDECAR, *words)

    def save(self, number):
        """Save a checkpoint as training would, a better one each time."""
        unfinished = self.checkpoints / ".unfinished"
        unfinished.write_text(json.dumps({"right": ACCURACIES[number - 1]}))
        unfinished.rename(self.checkpoints / f"model-{100 * number}.json")

    def daemons(self):
        """Addresses of the daemons that serve, by role."""
        return {
            role: found[1]
            for role in ("chief", "worker")
            if (found := re.search(r'"http": ?"http://([^/"]+)', (self.folder / f"daemon-{role}.out").read_text()))
        }

    def evaluated(self):
        """Return how many checkpoints the worker's daemon has seen evaluated."""
        with open_url(f"http://{self.daemons()['worker']}/metrics", timeout=60) as answer:
            found = re.search(r"^sidecar_checkpoints_evaluated_total{.*} (\d+)", answer.read().decode(), re.MULTILINE)
        return int(found[1]) if found else 0

    def sabotage(self):
        """Kill a worker process in the middle of an evaluation, once per attempt; whether one has failed of that."""
        address = self.daemons()["worker"]
        with open_url(f"http://{address}/metrics", timeout=60) as answer:
            if re.search(r"^sidecar_plans_failed_total{.*} [1-9]", answer.read().decode(), re.MULTILINE):
                return True
        with open_url(f"http://{address}/api/status", timeout=60) as answer:
            status = json.load(answer)
        busy = [each["pid"] for each in status["workers"] if each["state"] in {"restore", "evaluate"}]
        if busy and status["plan"] is not None and status["plan"]["plan"] not in self._spoiled:
            self._spoiled.add(status["plan"]["plan"])
            os.kill(busy[0], signal.SIGKILL)
        return False

    def hold(self):
        """Wait longer than any panel's interval, so that each panel sees the first evaluation before the next ones."""
        held = time.monotonic() + HOLD_SECONDS
        self.until(lambda: time.monotonic() > held, "the next interval")

    def scrape(self):
        """Start Prometheus, with the rules as they are deployed and one alert that always fires."""
        (self.folder / "always.yml").write_text(
            "groups: [{name: always, rules: [{alert: SidecarTest, expr: max by (run) (sidecar_node_info), "
            "labels: {severity: warning}}]}]\n"
        )
        config = self.folder / "prometheus.yml"
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
                    "rule_files": [f"{RULES}/*.yml", "always.yml"],
                    "scrape_configs": [
                        {"job_name": "sidecar", "static_configs": [{"targets": list(self.daemons().values())}]}
                    ],
                }
            )
        )
        self.spawn(
            "prometheus",
            self._prometheus,
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address={self.address}",
            "--web.enable-remote-write-receiver",
        )
        self.until(lambda: self.ask("query", query="up == 1"), "the first scrape")

    def history(self):
        """Return what the journal says of each success, by step."""
        found = rows(read_history(PosixStorage(self.checkpoints / ".sidecar" / self.checkpoints.name)))
        return {row["step"]: row for row in found if row["status"] == "succeeded"}


def in_order(history):
    """Steps, the one that was evaluated last at the end."""
    return sorted(history, key=lambda step: history[step]["completed_at"])


@pytest.fixture(scope="module")
def run(needs, tmp_path_factory):
    """A run of several checkpoints, one of whose attempts fails since a worker process is killed in it."""
    prometheus = needs("prometheus")
    made = Run(tmp_path_factory.mktemp("grafana"), prometheus)
    try:
        made.start_daemons()
        made.until(lambda: len(made.daemons()) == 2, "two daemons")
        made.scrape()
        for number in range(1, len(ACCURACIES) + 1):
            made.save(number)
            if number == 2:
                made.until(made.sabotage, "an attempt that fails")
            made.until(lambda number=number: made.evaluated() == number, "the next evaluation")
            if number == 1:
                made.hold()
        made.until(
            lambda: any(
                float(each["value"][1]) == in_order(made.history())[-1]
                for each in made.ask("query", query="sidecar:eval_checkpoint_step:latest")
            ),
            "the last checkpoint in Prometheus",
        )
        made.end = time.time() + 2 * SCRAPE_SECONDS  # panels look at whole intervals: one must follow the last change
        made.until(lambda: time.time() >= made.end, "the next interval")
        yield made
    finally:
        made.close()


@pytest.mark.nightly
@pytest.mark.parametrize("query", ALL, ids=str)
def test_query_gives_data(run, query):
    """Every query shows something of a run in which everything happened once, with the labels that its legend uses."""
    series = run.data(query)
    if RARE.search(query.where):
        assert not series
        return
    assert any(not math.isnan(value) for _, values in series for value in values)
    for labels, _ in series:
        assert set(query.labels) <= set(labels)


def test_table_agrees_with_the_journal(run):
    """Each evaluation: numbers went through remote write and a join of series, and are the journal's to the bit."""
    shown, rows = joined(run, "training-run.json", 301), run.history()
    assert {each["step"] for each in shown.values()} == set(rows)
    for stamp, cells in shown.items():
        row = rows[cells.pop("step")]
        assert stamp == pytest.approx(datetime.fromisoformat(row["completed_at"]).timestamp(), abs=1e-3)
        assert cells.pop("examples") == row["examples"]["test"]
        assert cells == {metric: each["value"] for metric, each in row["metrics"]["test"].items()}


def test_curve_agrees_with_the_journal(run):
    """Each evaluation is a point of the curve over step, with its interval."""
    for identity, metric in ((106, "accuracy"), (206, "loss")):
        points = {}
        for query in panel("training-run.json", identity):
            for labels, stamp, value in run.samples(replace(query, metric="accuracy")):
                assert labels.get("metric", metric) == metric
                points.setdefault(stamp, {})[query.where[-1]] = value
        expected = {
            step: tuple(row["metrics"]["test"][metric].get(end) for end in ("value", "lower", "upper"))
            for step, row in run.history().items()
        }
        found = {point["D"]: (point["C"], point.get("B"), point.get("A")) for point in points.values()}
        assert found == expected


def test_setup_is_complete_and_every_result_is_shown(run):
    """The two panels about the panels say so."""
    for name, setup, shown in (("training-run.json", 11, 12), ("compare-runs.json", 103, 104)):
        for identity, expected in ((setup, 4), (shown, 2)):
            (query,) = panel(name, identity)
            assert [value for _, (value,) in run.data(query)] == [expected], query.where


def test_names_are_those_of_the_newest_numbers(run):
    """Also right after an evaluation, when the panel's interval has not passed."""
    rows = run.history()
    best = max(rows, key=lambda step: rows[step]["metrics"]["test"]["accuracy"]["value"])
    for identity, step in ((9, in_order(rows)[-1]), (10, max(rows)), (107, best)):
        (query,) = panel("training-run.json", identity)
        ((labels, _),) = run.data(replace(query, metric="accuracy", interval=INTERVAL, points=100))
        assert labels["checkpoint"] == f"model-{step}.json", identity


def test_runs_are_compared_by_what_the_journal_says(run):
    """Best and newest of the run, with their steps, in both tables of runs."""
    rows = run.history()
    accuracy = {step: row["metrics"]["test"]["accuracy"]["value"] for step, row in rows.items()}
    best, newest = max(accuracy, key=accuracy.get), in_order(rows)[-1]
    expected = {"best": accuracy[best], "at step": best, "newest": accuracy[newest], "newest step": newest}
    assert (
        table(run, "compare-runs.json", 2).items()
        >= {
            **expected,
            "best checkpoint": f"model-{best}.json",
            "newest checkpoint": f"model-{newest}.json",
        }.items()
    )
    overview = table(run, "all-runs.json", 6)
    assert overview.items() >= {"best": accuracy[best], "newest": accuracy[newest], "best at step": best}.items()
    assert overview["alerts"] >= 1


def table(run, name, identity):
    """The one row of a table that is joined by a label, as {column: value}."""
    (shown,) = (each for each in panels_of(load(name)) if each["id"] == identity)
    (names,) = (step["options"]["renameByName"] for step in shown["transformations"] if step["id"] == "organize")
    found = {}
    for query in panel(name, identity):
        ((labels, (value,)),) = run.data(replace(query, metric="accuracy", interval=INTERVAL, points=100))
        fields = {f"Value #{query.where[-1]}": value} | labels
        found |= {names[field]: value for field, value in fields.items() if field in names}
    return found


def test_comparisons_say_what_the_numbers_say(run):
    """Better is positive for accuracy and for loss; the verdict is of the newest checkpoint among all of the run.

    The newest is what was evaluated last: one whose first attempt failed may come after those that followed it.
    """
    rows = run.history()
    *_, previous, newest = in_order(rows)
    than_previous, _ = panel("training-run.json", 103)
    better = {labels["metric"]: value for labels, (value,) in run.data(than_previous)}
    (verdict,) = panel("training-run.json", 104)
    verdicts = {labels["metric"]: value for labels, (value,) in run.data(verdict)}
    assert better.keys() == verdicts.keys() == {"accuracy", "loss"}
    for metric, sign in (("accuracy", 1), ("loss", -1)):
        values = {step: row["metrics"]["test"][metric]["value"] for step, row in rows.items()}
        assert better[metric] == pytest.approx(sign * (values[newest] - values[previous]), abs=1e-9)
        best = max(sign * value for value in values.values())
        assert (verdicts[metric] == 2) == (sign * values[newest] == best)


def test_overrides_and_transformations_name_fields_that_exist(run, board):
    """A misspelt name would do nothing, silently."""
    for shown in panels_of(board):
        fields = set(_fields(run, board, shown))
        for step in shown.get("transformations", ()):
            options = step["options"]
            if step["id"] == "groupBy":
                assert set(options["fields"]) <= fields, shown["title"]
                fields |= {f"{field} (last)" for field in options["fields"]}
            if step["id"] == "groupingToMatrix":
                assert {options[key] for key in ("columnField", "rowField", "valueField")} <= fields, shown["title"]
                fields.add("{rowField}\\{columnField}".format_map(options))
            renamed = options.get("renameByName", {})
            assert set(renamed) <= fields, shown["title"]
            fields |= set(renamed.values())
        named = {override["matcher"]["options"] for override in shown["fieldConfig"]["overrides"]}
        named |= {shown["options"]["xField"]} if "xField" in shown["options"] else set()
        assert named <= fields, shown["title"]


def _fields(run, board, shown):
    """The names of fields before transformations. A legend without labels needs no series."""
    for target in shown["targets"]:
        query = next(each for each in ALL if each.where == f"{board['uid']}: {shown['title']} {target['refId']}")
        legend = target.get("legendFormat", "")
        if target.get("format") == "table":
            yield from ("Time", "Value" if len(shown["targets"]) == 1 else f"Value #{target['refId']}")
            yield from (label for labels, _ in run.data(query) for label in labels)
        elif "{{" not in legend:
            yield legend
        else:
            for labels, _ in run.data(query):
                yield re.sub(r"{{(\w+)}}", lambda match: labels[match[1]], legend)  # noqa: B023
