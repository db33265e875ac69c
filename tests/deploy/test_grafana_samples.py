"""Show panels with series that are given: results of one second, servers without remote write, missing rules."""

import re
import subprocess
import time

import pytest
from deploy.dashboard_queries import ALL, Prometheus, joined, panel

MINUTES = 10
RESULTS = {100: 0.5, 200: 0.6, 300: 0.7}
"""Accuracy by step. The three evaluations end within one second."""
GIVEN = {
    "sidecar:data_changes:max": ({"eval_set": "test"}, lambda age: 1 if age < 120 else 0),
    "sidecar:eval_class_metric:latest": ({"eval_set": "test", "metric": "accuracy", "class": "cat"}, lambda _: 0.25),
    "sidecar:eval_metric:latest": ({"eval_set": "test", "metric": "worst_slice_accuracy"}, lambda _: 0.0),
    "sidecar:eval_metric_info:latest": ({"eval_set": "test", "metric": "accuracy", "goal": "max"}, lambda _: 1),
    "sidecar:eval_nonfinite_examples:latest": ({"eval_set": "test", "place": "prediction"}, lambda _: 7),
    "sidecar:eval_lag_seconds:max": ({}, lambda _: 5000),
    "sidecar:eval_lag_limit_seconds:max": ({}, lambda _: 900),
}
"""Series by name: their labels, and the value by its age in seconds."""


def exposition(end):
    """OpenMetrics of three runs: one sends results, one is sampled by rules, and one has no rules."""

    def line(name, labels, value, stamp):
        pairs = ",".join(f'{key}="{text}"' for key, text in labels.items())
        samples.setdefault(name, []).append(f"{name}{{{pairs}}} {value!r} {stamp:.3f}")

    samples = {}
    for run, family in (("sent", "sidecar_{}"), ("sampled", "sidecar:{}:sampled")):
        for place, (step, accuracy) in enumerate(RESULTS.items()):
            stamp = end - 60 + 0.3 * place if run == "sent" else end - 60 + 5 * place
            labels = {"run": run, "eval_set": "test"}
            line(family.format("result_step"), labels, step, stamp)
            line(family.format("result_examples"), labels, 400, stamp)
            line(family.format("result"), labels | {"metric": "accuracy"}, accuracy, stamp)
            line(family.format("result_lower"), labels | {"metric": "accuracy"}, accuracy - 0.1, stamp)
            line(family.format("result_upper"), labels | {"metric": "accuracy"}, accuracy + 0.1, stamp)
    for age in range(60 * MINUTES, 0, -15):
        for name, (labels, value) in GIVEN.items():
            line(name, {"run": "sent"} | labels, value(age), end - age)
        for place in range(25):
            labels = {"run": "sent", "eval_set": "test", "metric": "accuracy", "slice": f"country={place}"}
            line("sidecar:eval_slice_metric:latest", labels, place / 100, end - age)
        line("sidecar:publishers:sum", {"run": "sent"}, 1, end - age)
        line("sidecar_node_info", {"run": "none", "node": "n"}, 1, end - age - 7200)
    return "".join(
        f"# TYPE {name} gauge\n" + "".join(f"{each}\n" for each in lines) for name, lines in samples.items()
    ) + ("# EOF\n")


@pytest.fixture(scope="module")
def prometheus(needs, tmp_path_factory):
    """A Prometheus that has these series, and neither scrapes nor evaluates rules."""
    program, promtool = needs("prometheus"), needs("promtool")
    folder = tmp_path_factory.mktemp("samples")
    made = Prometheus(15, run="sent", eval_set="test", others="accuracy")
    made.end = float(int(time.time()))
    made.start = made.end - 60 * MINUTES
    (folder / "past.txt").write_text(exposition(made.end))
    (folder / "prometheus.yml").write_text("global: {}\n")
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", "past.txt", "tsdb"],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=240,
    )
    with (folder / "out").open("wb") as output:
        process = subprocess.Popen(
            [
                program,
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=tsdb",
                f"--web.listen-address={made.address}",
            ],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        bound = time.monotonic() + 60
        while not made.ask("query", query="sidecar:publishers:sum", time=made.end):
            assert process.poll() is None, (folder / "out").read_text()
            assert time.monotonic() < bound, (folder / "out").read_text()
            time.sleep(0.1)
        yield made
    finally:
        process.kill()
        process.wait()


def of_run(prometheus, run):
    """The same Prometheus with another run chosen."""
    other = Prometheus.__new__(Prometheus)
    vars(other).update(vars(prometheus) | {"_choices": vars(prometheus)["_choices"] | {"run": run}})
    return other


@pytest.mark.parametrize("run", ["sent", "sampled"])
@pytest.mark.parametrize(
    ("name", "identity"), [("training-run.json", 106), ("training-run.json", 206), ("compare-runs.json", 1)]
)
def test_each_evaluation_is_a_point(prometheus, run, name, identity):
    """Three evaluations of one second are three points of the curve over step, of both kinds of series."""
    points = {}
    for query in panel(name, identity):
        for labels, stamp, value in of_run(prometheus, run).samples(query):
            assert labels["run"] == run
            points.setdefault(stamp, []).append(value)
    values = [0.1, -0.1, 0.0] if name == "training-run.json" else [0.0]
    assert len(points) == len(RESULTS)
    assert sorted(points.values()) == [
        [*(pytest.approx(accuracy + off) for off in values), step] for step, accuracy in RESULTS.items()
    ]


def test_runs_are_laid_upon_each_other(prometheus):
    """With two runs chosen, each has its own values by step, whatever the times of its evaluations."""
    chosen = of_run(prometheus, "sent|sampled")
    values, steps = panel("compare-runs.json", 1)
    accuracies = {(labels["run"], stamp): value for labels, stamp, value in chosen.samples(values)}
    curves = {(labels["run"], step): accuracies[labels["run"], stamp] for labels, stamp, step in chosen.samples(steps)}
    assert curves == {(run, step): value for run in ("sent", "sampled") for step, value in RESULTS.items()}


@pytest.mark.parametrize("run", ["sent", "sampled"])
def test_each_evaluation_is_a_row(prometheus, run):
    """The table has one row for each, with the step, the examples and the metrics."""
    rows = joined(of_run(prometheus, run), "training-run.json", 301)
    assert sorted((row["step"], row["examples"], row["accuracy"]) for row in rows.values()) == [
        (step, 400, accuracy) for step, accuracy in RESULTS.items()
    ]


@pytest.mark.parametrize(("run", "expected"), [("sent", 2), ("sampled", 0), ("none", 0)])
@pytest.mark.parametrize(("name", "identity"), [("training-run.json", 12), ("compare-runs.json", 104)])
def test_results_shown(prometheus, name, identity, run, expected):
    """The panel says whether every result is shown, or only those that scrapes saw."""
    (query,) = panel(name, identity)
    ((_, (shown,)),) = of_run(prometheus, run).data(query)
    assert shown == expected


@pytest.mark.parametrize(("hours_ago", "expected"), [(0, 3), (2, 2), (9, 0)])
@pytest.mark.parametrize(
    ("name", "identity"),
    [("training-run.json", 11), ("compare-runs.json", 103), ("all-runs.json", 5), ("eval-fleet.json", 7)],
)
def test_setup_says_what_is_missing(prometheus, name, identity, hours_ago, expected):
    """3: no rules of alerts; 2: no recording rules; 0: no daemon."""
    (query,) = panel(name, identity)
    asked = of_run(prometheus, "sent")
    asked.start, asked.end = (edge - 3600 * hours_ago for edge in (prometheus.start, prometheus.end))
    ((_, (stage,)),) = asked.data(query)
    assert stage == expected


RARE = [query for query in ALL if re.search(r"Data changed|by class|by slice|NaN or infinity|Lag B$", query.where)]


@pytest.mark.parametrize("query", RARE, ids=str)
def test_rare_things_are_shown(prometheus, query):
    """Classes, slices, changes of the data, non-finite examples and a lag over its limit."""
    shown = prometheus.data(query)
    assert shown
    assert all(set(query.labels) <= set(labels) for labels, _ in shown)


def test_the_worst_slices_are_shown(prometheus):
    """Give 25 slices: those with the lowest numbers of a metric whose goal is max, with their numbers."""
    for identity in (110, 111):
        query, *_ = panel("training-run.json", identity)
        shown = {labels["slice"]: values[-1] for labels, values in prometheus.data(query)}
        assert shown == {f"country={place}": place / 100 for place in range(20)}


def test_lag_is_orange_from_its_limit_on(prometheus):
    """One of the two numbers is there: the one over the limit."""
    within, over = panel("training-run.json", 3)
    assert prometheus.data(within) == []
    assert [value for _, value in prometheus.data(over)] == [[5000.0]]
