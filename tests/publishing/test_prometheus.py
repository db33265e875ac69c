"""Export gauges and counters of one daemon."""

import math
import os
import threading
from typing import get_args

import psutil
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar.coordination.totals import Totals
from sidecar.policy.eligibility import Reason
from sidecar.protocol.records import PHASES, Nonfinite, Slice, Value
from sidecar.protocol.states import FAILURE_CLASSES
from sidecar.publishing.prometheus import Exporter, RunsCollector
from sidecar.publishing.run_list import RunState, RunSummary
from sidecar.publishing.status import Newest, SinkStatus, WorkerStatus

TEST = {"run": "mnist", "eval_set": "test"}

ACCURACY = TEST | {"metric": "accuracy"}

RUN = {"run": "mnist"}


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def exporter(registry):
    return Exporter(registry, process_metrics=False)


def value(number, goal="max"):
    return Value(value=number if math.isfinite(number) else None, hex=number.hex(), goal=goal)


def names(registry):
    return {sample.name for family in registry.collect() for sample in family.samples}


def test_names_that_are_no_utf_8(exporter, registry, journal, status):
    """A task may name eval sets after files. One such name must not let every scrape fail."""
    journal.evaluate("ckpt-\udce9", 400, {"loss\udce9": value(0.5)}, eval_sets=("caf\udce9",))
    exporter.update(status(), journal.history)
    for latest in (generate_latest, openmetrics_latest):
        assert rb'eval_set="caf\\udce9",metric="loss\\udce9"' in latest(registry)


def test_the_best_values_are_looked_up_once(exporter, journal, status, monkeypatch):
    """Each look goes through all metrics, so one for each of 8,000 metrics took six seconds of the daemon's loop."""
    looks, best = [], Totals.best.fget
    monkeypatch.setattr(Totals, "best", property(lambda totals: looks.append(1) or best(totals)))
    journal.evaluate("ckpt-4", 400, {f"metric_{number}": value(0.5) for number in range(50)})
    exporter.update(status(), journal.history)
    assert len(looks) == 1


def test_newest_evaluation(exporter, registry, journal, status):
    """The gauges show the evaluation that succeeded last, with interval, step, time and examples."""
    journal.evaluate("ckpt-4", 400)
    journal.evaluate("ckpt-5", 500, {"accuracy": Value(value=0.5, hex=(0.5).hex(), lower=0.4, upper=0.6, goal="max")})
    exporter.update(status(), journal.history)
    read = registry.get_sample_value
    assert read("sidecar_eval_metric", ACCURACY) == 0.5
    assert read("sidecar_eval_metric_lower", ACCURACY) == 0.4
    assert read("sidecar_eval_metric_upper", ACCURACY) == 0.6
    assert read("sidecar_eval_metric_info", ACCURACY | {"goal": "max"}) == 1
    assert read("sidecar_eval_examples", TEST) == 1003
    assert read("sidecar_eval_checkpoint_step", RUN) == 500
    assert read("sidecar_eval_completed_timestamp_seconds", RUN) == 1769860801.5
    assert read("sidecar_eval_best_metric", ACCURACY) == 0.97
    assert read("sidecar_eval_best_step", ACCURACY) == 400


def test_the_best_value_is_that_of_the_newest_data(exporter, registry, journal, status):
    """A better number of other data is no best one."""
    for step, (data, number) in enumerate((("a", 0.9), ("b", 0.5), ("b", 0.4)), 1):
        journal.evaluate(f"ckpt-{step}", step, {"accuracy": value(number)}, data=data)
    exporter.update(status(), journal.history)
    assert registry.get_sample_value("sidecar_eval_best_step", ACCURACY) == 2
    assert registry.get_sample_value("sidecar_eval_best_metric", ACCURACY) == 0.5


def test_a_set_that_was_left_out_keeps_its_numbers(exporter, registry, journal, status):
    """And says of which checkpoint they are; a daemon that has just started finds the same in the journal."""
    journal.evaluate("ckpt-4", 400, {"accuracy": value(0.25)}, eval_sets=("rare", "test"))
    exporter.update(status(), journal.history)
    journal.evaluate("ckpt-5", 500, {"accuracy": value(0.5)})
    exporter.update(status(), journal.history)
    fresh = CollectorRegistry()
    Exporter(fresh, process_metrics=False).update(status(), journal.history)
    for read in (registry.get_sample_value, fresh.get_sample_value):
        for eval_set, number, step in (("rare", 0.25, 400), ("test", 0.5, 500)):
            labels = RUN | {"eval_set": eval_set}
            assert read("sidecar_eval_metric", labels | {"metric": "accuracy"}) == number
            assert read("sidecar_eval_examples", labels) == 1003
            assert read("sidecar_eval_set_checkpoint_step", labels) == step
        assert read("sidecar_eval_checkpoint_step", RUN) == 500


def test_a_set_that_the_task_no_longer_has_is_gone(exporter, registry, journal, status):
    """The first evaluation with another task measures all its sets: what it does not tell is no more."""
    journal.evaluate("ckpt-4", 400, eval_sets=("rare", "test"))
    journal.evaluate("ckpt-5", 500, task="t2")
    exporter.update(status(), journal.history)
    samples = [sample for family in registry.collect() for sample in family.samples]
    shown = {each.labels.get("eval_set") for each in samples if each.name.startswith("sidecar_eval_")}
    assert shown == {"test", None}  # None: of the run


@pytest.mark.parametrize(
    "case",
    [
        ("max", [0.1, 0.9, 0.9, 0.3], 0.9, 2),
        ("min", [0.5, 0.2, 0.2, 0.7], 0.2, 2),
        ("max", [math.nan, 0.2, math.nan], 0.2, 2),
        ("min", [math.nan, math.inf, 3.0], 3.0, 3),
        ("none", [0.1, 0.9], None, None),
        ("max", [math.nan], None, None),
    ],
)
def test_best(exporter, registry, journal, status, case):
    """The best is the first of the best values, never NaN, and only where the task says what is better."""
    goal, numbers, best, step = case
    for number, one in enumerate(numbers, start=1):
        journal.evaluate(f"ckpt-{number}", number, {"accuracy": value(one, goal)})
    exporter.update(status(), journal.history)
    assert registry.get_sample_value("sidecar_eval_best_metric", ACCURACY) == best
    assert registry.get_sample_value("sidecar_eval_best_step", ACCURACY) == step


def test_best_forgets_another_goal(exporter, registry, journal, status):
    """When the task turns a metric's goal around, numbers from before do not compete any more."""
    journal.evaluate("ckpt-1", 1, {"accuracy": value(0.9, "max")})
    journal.evaluate("ckpt-2", 2, {"accuracy": value(0.5, "min")})
    exporter.update(status(), journal.history)
    assert registry.get_sample_value("sidecar_eval_best_metric", ACCURACY) == 0.5
    journal.evaluate("ckpt-3", 3, {"accuracy": value(0.6, "none")})
    exporter.update(status(), journal.history)
    assert registry.get_sample_value("sidecar_eval_best_metric", ACCURACY) is None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_cannot_carry(exporter, registry, journal, status, number):
    """A null value with its hex is exported as NaN or infinity, in text that Prometheus reads."""
    journal.evaluate("ckpt-1", 1, {"accuracy": value(number)})
    exporter.update(status(), journal.history)
    (family,) = [f for f in parse_text(generate_latest(registry).decode()) if f.name == "sidecar_eval_metric"]
    assert family.samples[0].value == pytest.approx(number, nan_ok=True)


def test_unreadable_hex(exporter, registry, journal, status):
    """A hex that is no number is shown as NaN instead of stopping the daemon."""
    journal.evaluate("ckpt-1", 1, {"accuracy": Value(value=None, hex="what?", goal="max")})
    exporter.update(status(), journal.history)
    assert math.isnan(registry.get_sample_value("sidecar_eval_metric", ACCURACY))


def test_only_the_publisher_exports_evaluations(exporter, registry, journal, status):
    """The sidecar_eval_* families come and go with the publisher's office; everything else stays."""
    journal.evaluate("ckpt-5", 500)
    exporter.update(status(publisher=False), journal.history)
    assert not [name for name in names(registry) if name.startswith("sidecar_eval_")]
    assert registry.get_sample_value("sidecar_publisher", RUN | {"node": "worker-0"}) == 0
    assert registry.get_sample_value("sidecar_checkpoints_evaluated_total", RUN) == 1
    exporter.update(status(publisher=True), journal.history)
    assert registry.get_sample_value("sidecar_eval_metric", ACCURACY) == 0.97
    assert registry.get_sample_value("sidecar_publisher", RUN | {"node": "worker-0"}) == 1
    exporter.update(status(publisher=False), journal.history)
    assert registry.get_sample_value("sidecar_eval_metric", ACCURACY) is None


def test_counters_come_from_the_journal(exporter, registry, journal, status, settle):
    """Each checkpoint counts once under its end, and each failed plan under its kind."""
    for attempt in (1, 2):
        journal.plan("ckpt-1", attempt=attempt)
        journal.fail("task_error")
    journal.plan(None, settles=[settle("ckpt-1"), settle("ckpt-2", "skipped"), settle("ckpt-3", "vanished")])
    journal.plan("ckpt-4", settles=[settle("ckpt-5", "corrupt"), settle("ckpt-1", task="t2")])
    journal.succeed()
    exporter.update(status(), journal.history)
    for end in ("evaluated", "failed", "skipped", "vanished", "corrupt"):
        assert registry.get_sample_value(f"sidecar_checkpoints_{end}_total", RUN) == 1, end
    assert registry.get_sample_value("sidecar_plans_failed_total", RUN | {"kind": "task_error"}) == 2


def test_known_series_start_at_zero(exporter, registry, journal, status):
    """Counters and histograms exist before anything happened, so that the first increase is seen."""
    exporter.update(status(), journal.history)
    for kind in FAILURE_CLASSES:
        assert registry.get_sample_value("sidecar_plans_failed_total", RUN | {"kind": kind}) == 0
    for phase in PHASES:
        labels = RUN | {"phase": phase}
        assert registry.get_sample_value("sidecar_evaluation_phase_duration_seconds_count", labels) == 0
    assert registry.get_sample_value("sidecar_checkpoints_evaluated_total", RUN) == 0
    assert registry.get_sample_value("sidecar_members", RUN | {"state": "draining"}) == 0


def test_kind_from_the_future(exporter, registry, journal, status):
    """A kind that this version does not know becomes `unknown`, so that the label stays bounded."""
    journal.plan()
    journal.fail("solar_flare")
    exporter.update(status(), journal.history)
    assert registry.get_sample_value("sidecar_plans_failed_total", RUN | {"kind": "unknown"}) == 1


def test_phase_histogram(exporter, registry, journal, status):
    """Durations fall into the bucket that includes them; clocks that disagree give 0."""
    journal.plan()
    journal.succeed(phases={"restore": 0.1, "evaluate": 90.0, "reduce": 5000.0, "save": -1.0, "invented": 1.0})
    exporter.update(status(), journal.history)

    def bucket(phase, bound):
        return registry.get_sample_value(
            "sidecar_evaluation_phase_duration_seconds_bucket", RUN | {"phase": phase, "le": bound}
        )

    assert (bucket("restore", "0.03"), bucket("restore", "0.1"), bucket("restore", "+Inf")) == (0, 1, 1)
    assert (bucket("evaluate", "60.0"), bucket("evaluate", "300.0")) == (0, 1)
    assert (bucket("reduce", "3600.0"), bucket("reduce", "+Inf")) == (0, 1)
    assert bucket("save", "0.01") == 1
    assert bucket("invented", "+Inf") is None
    sums = "sidecar_evaluation_phase_duration_seconds_sum"
    assert registry.get_sample_value(sums, RUN | {"phase": "evaluate"}) == 90.0
    assert registry.get_sample_value(sums, RUN | {"phase": "save"}) == 0.0


def test_this_node(exporter, registry, journal, status):
    """Queue, group, disk, identity and the worker processes come from the status."""
    exporter.update(status(), journal.history)
    read = registry.get_sample_value
    assert read("sidecar_newest_checkpoint_step", RUN) == 700
    assert read("sidecar_newest_checkpoint_timestamp_seconds", RUN) == 1769860800.25
    assert read("sidecar_checkpoints_pending", RUN) == 3
    assert read("sidecar_group_size", RUN) == 2
    assert read("sidecar_groups_formed_total", RUN) == 4
    assert read("sidecar_members", RUN | {"state": "ready"}) == 2
    left_out = {reason: read("sidecar_nodes_left_out", RUN | {"reason": reason}) for reason in get_args(Reason)}
    assert left_out == {"version": 1, "task": 0, "profile": 0, "losses": 0, "unreadable": 0}
    assert read("sidecar_pins_bytes", RUN) == 1024
    assert read("sidecar_saves_bytes", RUN) == 2048
    node = {"node": "worker-0", "role": "worker", "role_source": "TF_CONFIG", "version": "0.1.0"}
    assert read("sidecar_node_info", RUN | node) == 1
    assert read("sidecar_worker_processes", RUN | {"state": "standby"}) == 1
    assert read("sidecar_worker_batches", RUN | {"process": "0"}) == 3
    assert read("sidecar_worker_expected_batches", RUN | {"process": "0"}) == 8
    assert read("sidecar_worker_expected_batches", RUN | {"process": "1"}) is None
    assert read("sidecar_worker_info", RUN | {"process": "1", "worker": "w1-9", "pid": "4243"}) == 1
    assert "sidecar_build_info" in names(registry)


def test_checkpoint_without_a_step(exporter, registry, journal, status):
    """It has its place in order of writing, which is marked as such, so that dashboards have something to show."""
    journal.evaluate("first", None)
    journal.evaluate("final", None)
    exporter.update(status(newest=None), journal.history)
    read, order = registry.get_sample_value, {"checkpoint": "final", "step_source": "order"}
    assert read("sidecar_eval_checkpoint_step", RUN) == 2
    assert read("sidecar_eval_set_checkpoint_step", RUN | {"eval_set": "test"}) == 2
    assert read("sidecar_eval_best_step", ACCURACY) == 1
    assert read("sidecar_eval_checkpoint_info", RUN | {"eval_set": "test"} | order) == 1
    assert read("sidecar_eval_best_info", ACCURACY | order | {"checkpoint": "first"}) == 1
    assert "sidecar_newest_checkpoint_step" not in names(registry)


def test_checkpoints_are_named_and_only_those_of_now(exporter, registry, journal, status):
    """Export a series of 1 for the newest and the best checkpoint, replaced when it changes."""
    for step in range(40):
        journal.evaluate(f"ckpt-{step}", step, {"accuracy": value(0.9 - abs(step - 30) / 100)})
    exporter.update(
        status(newest=Newest(step=7, written_at=1.0, checkpoint='odd "5"\n\udcff', digest="d", step_source="name")),
        journal.history,
    )
    named = {
        (sample.name, sample.labels["checkpoint"], sample.labels["step_source"])
        for family in registry.collect()
        for sample in family.samples
        if "checkpoint" in sample.labels
    }
    assert named == {
        ("sidecar_eval_checkpoint_info", "ckpt-39", "unknown"),
        ("sidecar_eval_best_info", "ckpt-30", "unknown"),
        ("sidecar_newest_checkpoint_info", r'odd "5"\n\udcff', "name"),
    }
    assert generate_latest(registry)


@pytest.mark.parametrize("text_format", [(generate_latest, parse_text), (openmetrics_latest, parse_openmetrics)])
def test_exposition_parses(exporter, registry, journal, status, text_format):
    """Both text formats parse, every family has a help text, and odd names come back unharmed."""
    write, parse = text_format
    odd = 'top "5"\\ of\nall'
    journal.evaluate("ckpt-5", 500, {odd: value(math.nan), "accuracy": value(0.5)})
    journal.plan()
    exporter.update(status(run=odd), journal.history)
    families = list(parse(write(registry).decode()))
    assert all(family.documentation for family in families)
    metrics = {sample.labels["metric"] for f in families if f.name == "sidecar_eval_metric" for sample in f.samples}
    assert metrics == {odd, "accuracy"}
    runs = {sample.labels.get("run") for family in families for sample in family.samples}
    assert runs == {odd, None}  # None: sidecar_build_info


def test_labels_are_bounded(exporter, registry, journal, status):
    """No label is a step or a path but in series of information, and a default run stays far under 500 series."""
    for step in range(40):
        journal.evaluate(f"ckpt-{step}", step)
    exporter.update(status(), journal.history)
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert len(samples) < 250
    values = {value for sample in samples if not sample.name.endswith("_info") for value in sample.labels.values()}
    assert not [value for value in values if "ckpt" in value or "/" in value]


def test_described_before_the_first_update(exporter, registry, journal, status):
    """A scrape may come first and sees only the build; `name[]` selects from all families, described or built."""
    assert names(registry) == {"sidecar_build_info"}
    journal.evaluate("ckpt-5", 500)
    exporter.update(status(), journal.history)
    assert {family.name for family in registry.collect()} <= {family.name for family in exporter.describe()}
    chosen = registry.restricted_registry(["sidecar_eval_metric"])
    assert [sample.value for family in chosen.collect() for sample in family.samples] == [0.97]


def test_an_update_reads_no_entries(exporter, registry, journal, status):
    """It costs the same however long the journal is; another history object has other totals."""
    journal.evaluate("ckpt-1", 1)
    exporter.update(status(), journal.history)
    journal.history.entries[:] = []
    journal.evaluate("ckpt-2", 2)
    exporter.update(status(), journal.history)
    assert registry.get_sample_value("sidecar_checkpoints_evaluated_total", RUN) == 2
    exporter.update(status(), type(journal.history)())
    assert registry.get_sample_value("sidecar_checkpoints_evaluated_total", RUN) == 0


def test_a_scrape_never_sees_the_history(exporter, registry, journal, status):
    """Changes of the journal after an update stay invisible to every thread until the next update."""
    journal.evaluate("ckpt-1", 1)
    exporter.update(status(), journal.history)
    journal.evaluate("ckpt-2", 2)
    seen = []
    scrape = threading.Thread(
        target=lambda: seen.append(registry.get_sample_value("sidecar_eval_checkpoint_step", RUN))
    )
    scrape.start()
    scrape.join(timeout=60)
    assert seen == [1]


def test_process_metrics(registry):
    """The daemon's own memory is exported unless it is not wanted."""
    Exporter(registry)
    assert registry.get_sample_value("process_resident_memory_bytes") > 1_000_000


def test_totals_wait_for_the_whole_journal(exporter, registry, journal, status):
    """A daemon that still reads its journal after a restart shows no totals, or they would look like a reset."""
    journal.evaluate("ckpt-1", 1)
    exporter.update(status(journal_read=False), journal.history)
    shown = names(registry)
    assert not [name for name in shown if name.startswith(("sidecar_eval_", "sidecar_evaluation_", "sidecar_plans_"))]
    assert not [name for name in shown if name.startswith("sidecar_checkpoints_") and name.endswith("_total")]
    assert "sidecar_members" in shown
    exporter.update(status(), journal.history)
    assert registry.get_sample_value("sidecar_checkpoints_evaluated_total", RUN) == 1


def test_workers_show_what_they_use(exporter, registry, journal, status):
    """Memory and CPU time of each worker process, read at the scrape; one that is gone has none."""
    here, gone = (
        WorkerStatus(worker="w-0", pid=os.getpid(), state="idle"),
        WorkerStatus(worker="w-1", pid=2**22 + 1, state="idle"),
    )
    exporter.update(status(workers=(here, gone)), journal.history)
    read, place = registry.get_sample_value, RUN | {"process": "0"}
    resident = psutil.Process().memory_info().rss
    assert read("sidecar_worker_resident_memory_bytes", place) == pytest.approx(resident, rel=0.2)
    assert read("sidecar_worker_cpu_seconds_total", place) > 0
    assert read("sidecar_worker_resident_memory_bytes", RUN | {"process": "1"}) is None


def test_readiness_and_the_oldest_that_waits(exporter, registry, journal, status):
    """A node that cannot take part says so; the oldest waiting checkpoint dates the lag, and is absent without one."""
    read, node = registry.get_sample_value, RUN | {"node": "worker-0"}
    exporter.update(status(), journal.history)
    assert read("sidecar_ready", node) == 1
    assert read("sidecar_pending_oldest_timestamp_seconds", RUN) == 1769860700.5
    exporter.update(status(unready="storage hangs", pending=0, oldest_pending=None), journal.history)
    assert read("sidecar_ready", node) == 0
    assert read("sidecar_pending_oldest_timestamp_seconds", RUN) is None


def test_a_chief_counts_no_queue(exporter, registry, journal, status):
    """It does not look at checkpoints, so a zero would be a claim."""
    exporter.update(status(role="chief", publisher=False, pending=0), journal.history)
    assert registry.get_sample_value("sidecar_checkpoints_pending", RUN) is None


def test_values_of_classes_and_slices(exporter, registry, journal, status):
    """One series per class, of the evaluation that the gauges show, and from the publisher only."""
    journal.plan()
    half = Value(value=0.5, hex=(0.5).hex())
    classes = {"recall": {"cat": half, "dog": Value(value=None, hex="nan")}}
    journal.succeed(classes=classes, slices={"night": Slice(examples=7, metrics={"recall": half})})
    exporter.update(status(), journal.history)
    read, labels = registry.get_sample_value, TEST | {"metric": "recall"}
    assert read("sidecar_eval_class_metric", labels | {"class": "cat"}) == 0.5
    assert math.isnan(read("sidecar_eval_class_metric", labels | {"class": "dog"}))
    assert read("sidecar_eval_slice_metric", labels | {"slice": "night"}) == 0.5
    assert read("sidecar_eval_slice_examples", TEST | {"slice": "night"}) == 7
    exporter.update(status(publisher=False), journal.history)
    assert read("sidecar_eval_class_metric", labels | {"class": "cat"}) is None


def test_data_that_changed_are_counted(exporter, registry, journal, status):
    """From 0, so that the first change is seen; by every daemon, as it is in the journal."""
    journal.plan()
    journal.succeed()
    exporter.update(status(publisher=False), journal.history)
    assert registry.get_sample_value("sidecar_data_changes_total", TEST) == 0
    journal.plan("ckpt-6")
    journal.succeed(changed=("test",))
    exporter.update(status(publisher=False), journal.history)
    assert registry.get_sample_value("sidecar_data_changes_total", TEST) == 1


def test_nonfinite_examples(exporter, registry, journal, status):
    """Nothing is claimed of a place that never held any; one that did falls to 0, so that an alert ends."""
    shown = []
    for found in (None, {"prediction": Nonfinite(3, 3, 97)}, {"input": Nonfinite(1, None, None)}, None):
        journal.plan()
        journal.succeed(nonfinite=found)
        exporter.update(status(), journal.history)
        places = ("prediction", "input", "label")
        shown.append(
            [registry.get_sample_value("sidecar_eval_nonfinite_examples", TEST | {"place": place}) for place in places]
        )
    assert shown == [[None, None, None], [3, None, None], [0, 1, None], [0, 0, None]]
    exporter.update(status(publisher=False), journal.history)
    assert registry.get_sample_value("sidecar_eval_nonfinite_examples", TEST | {"place": "input"}) is None


def test_sinks_are_shown_as_they_are_at_the_scrape(registry, journal, status):
    """Whether the newest delivery failed, how much is missing, and the signal to stop of the sink that has one."""
    sinks = [
        SinkStatus(name="mlflow", pending=2, refused=1, failing="away"),
        SinkStatus(name="early_stop", stop_signalled=True),
    ]
    Exporter(registry, process_metrics=False, sinks=lambda: sinks).update(status(), journal.history)

    def read(name, **labels):
        return registry.get_sample_value(name, RUN | labels)

    assert read("sidecar_sink_failing", sink="mlflow") == 1
    assert read("sidecar_sink_failing", sink="early_stop") == 0
    assert read("sidecar_sink_pending_results", sink="mlflow") == 2
    assert read("sidecar_sink_refused_results_total", sink="mlflow") == 1
    assert read("sidecar_early_stop") == 1
    sinks[0] = SinkStatus(name="mlflow")
    assert read("sidecar_sink_failing", sink="mlflow") == 0


def test_several_runs_in_one_process_have_each_family_once(registry, journal, status):
    """Prometheus refuses a family that comes twice; the label `run` tells the runs apart."""
    journal.evaluate("ckpt-4", 400, {"accuracy": value(0.5)})
    exporters = [Exporter(None) for _ in range(2)]
    for exporter, run in zip(exporters, ("a", "b"), strict=True):
        exporter.update(status(run=run), journal.history)
    runs = [RunSummary(run=run, place="/", state=RunState.SERVING, seconds=2.5) for run in ("a", "b")]
    runs.append(RunSummary(run="c", place="/", state=RunState.FAILED))
    RunsCollector(registry, lambda: exporters, lambda: runs)
    for parse, latest in ((parse_text, generate_latest), (parse_openmetrics, openmetrics_latest)):
        families = list(parse(latest(registry).decode()))
        assert len({family.name for family in families}) == len(families)
        samples = {(s.name, s.labels.get("run"), s.labels.get("state")): s.value for f in families for s in f.samples}
        assert [samples["sidecar_eval_metric", run, None] for run in "ab"] == [0.5, 0.5]
        assert samples["sidecar_build_info", None, None] == 1
        assert samples["sidecar_run_state", "c", "failed"] == samples["sidecar_run_state", "a", "serving"] == 1
        assert samples["sidecar_run_turn_seconds_total", "b", None] == 2.5
