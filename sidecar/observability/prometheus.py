"""Export Prometheus families about the journal and this node, as one snapshot.

The daemon's loop calls `Exporter.update` after each change. Scrape threads read only the last snapshot, and /proc.
Totals are exported only after the journal was read to its end, because a restart must not look like a counter that was
reset. This module must not import the daemon.
"""

import platform
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.totals import Totals, number_of
from sidecar.observability.status import Status
from sidecar.plain_text import one_line
from sidecar.policy.eligibility import Reason
from sidecar.records import Result
from sidecar.states import NodeState
from sidecar.version import __version__

_ONE = ("run",)
_METRIC = ("run", "eval_set", "metric")
_DURATION: Final = "sidecar_evaluation_phase_duration_seconds"
_DURATION_LABELS: Final = ("run", "phase")
_DURATION_HELP: Final = "Seconds that successful evaluations spent in each phase, on the slowest worker."

# Families of information are gauges of 1: as Info, OpenMetrics would strip `_info` and see `sidecar_eval_metric` twice.
_FAMILIES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "sidecar_eval_metric": (_METRIC, "Value of a metric, over all workers, when its eval set was evaluated last."),
    "sidecar_eval_metric_lower": (_METRIC, "Lower end of the metric's 95 % confidence interval."),
    "sidecar_eval_metric_upper": (_METRIC, "Upper end of the metric's 95 % confidence interval."),
    "sidecar_eval_metric_info": ((*_METRIC, "goal"), "Always 1; goal says whether more (max) or less (min) is better."),
    "sidecar_eval_best_metric": (_METRIC, "Best value of a metric over all checkpoints evaluated in this run."),
    "sidecar_eval_best_step": (_METRIC, "Training step of the checkpoint with the best value of a metric."),
    "sidecar_eval_best_info": (
        (*_METRIC, "checkpoint", "step_source"),
        "Always 1; the checkpoint with the best value of a metric, and how its step was found.",
    ),
    "sidecar_eval_class_metric": (
        (*_METRIC, "class"),
        "Value of a metric for one class, where there are few, when its eval set was evaluated last.",
    ),
    "sidecar_eval_examples": (
        ("run", "eval_set"),
        "Examples counted, each once, when the eval set was evaluated last.",
    ),
    "sidecar_eval_set_checkpoint_step": (
        ("run", "eval_set"),
        "Training step of the checkpoint that the gauges of an eval set are about: with every_nth an earlier one.",
    ),
    "sidecar_eval_checkpoint_info": (
        ("run", "eval_set", "checkpoint", "step_source"),
        "Always 1; the checkpoint that the gauges of an eval set are about, and how its step was found.",
    ),
    "sidecar_eval_nonfinite_examples": (
        ("run", "eval_set", "place"),
        "Examples with NaN or infinite numbers in a place that ever held any, when the eval set was evaluated last.",
    ),
    "sidecar_data_changes_total": (
        ("run", "eval_set"),
        "Evaluations in which an eval set held other data than in the one before: curves do not compare across them.",
    ),
    "sidecar_eval_checkpoint_step": (_ONE, "Training step of the checkpoint evaluated last."),
    "sidecar_eval_completed_timestamp_seconds": (
        _ONE,
        "Unix time at which the last evaluation was completed.",
    ),
    "sidecar_newest_checkpoint_step": (_ONE, "Training step of the complete checkpoint discovered last."),
    "sidecar_newest_checkpoint_info": (
        ("run", "checkpoint", "step_source"),
        "Always 1; the complete checkpoint discovered last, and how its step was found.",
    ),
    "sidecar_newest_checkpoint_timestamp_seconds": (
        _ONE,
        "Unix time at which the last file of the checkpoint discovered last was written.",
    ),
    "sidecar_checkpoints_pending": (_ONE, "Complete checkpoints that still need an evaluation."),
    "sidecar_pending_oldest_timestamp_seconds": (
        _ONE,
        "Unix time at which the oldest checkpoint that still needs an evaluation was written; absent if there is none.",
    ),
    "sidecar_checkpoints_evaluated_total": (_ONE, "Checkpoints that were evaluated successfully."),
    "sidecar_checkpoints_failed_total": (_ONE, "Checkpoints given up after too many failed attempts."),
    "sidecar_checkpoints_skipped_total": (
        _ONE,
        "Checkpoints passed over on purpose, as queue, every_steps, start or the bounds of pins say.",
    ),
    "sidecar_checkpoints_vanished_total": (_ONE, "Checkpoints deleted before they could be evaluated."),
    "sidecar_checkpoints_corrupt_total": (_ONE, "Checkpoints whose files contradict themselves."),
    "sidecar_checkpoints_unseen_total": (
        _ONE,
        "Checkpoints deleted before any node saw them, as gaps in their numbers show, since this daemon started.",
    ),
    "sidecar_plans_failed_total": (("run", "kind"), "Attempts at an evaluation that failed, by kind of failure."),
    "sidecar_group_size": (_ONE, "Worker processes in the group of the newest successful evaluation."),
    "sidecar_groups_formed_total": (_ONE, "Evaluation groups formed since this daemon started."),
    "sidecar_members": (
        ("run", "state"),
        "Nodes whose heartbeat this node sees, by the state they report; chiefs apart.",
    ),
    "sidecar_nodes_left_out": (
        ("run", "reason"),
        "Ready nodes that take no part in evaluations, or not in all, by the reason; `sidecar status` names them.",
    ),
    "sidecar_pins_bytes": (_ONE, "Disk space of the checkpoints held until they are evaluated."),
    "sidecar_saves_bytes": (_ONE, "Disk space of the weights, predictions and states that workers saved."),
    "sidecar_ready": (
        ("run", "node"),
        "1 while the node can do its part (a chief has none), else 0; /readyz has the reason.",
    ),
    "sidecar_publisher": (("run", "node"), "1 on the one node that exports the sidecar_eval_* families, else 0."),
    "sidecar_node_info": (
        ("run", "node", "role", "role_source", "version"),
        "Always 1; this node's role and where it was found.",
    ),
    "sidecar_worker_processes": (("run", "state"), "Worker processes of this node, by what they are doing."),
    "sidecar_worker_batches": (("run", "process"), "Batches of the running evaluation that a worker process has done."),
    "sidecar_worker_expected_batches": (
        ("run", "process"),
        "Batches of the running evaluation that a worker process has to do.",
    ),
    "sidecar_worker_info": (
        ("run", "process", "worker", "pid"),
        "Always 1; worker and process id behind a process number.",
    ),
    "sidecar_worker_resident_memory_bytes": (("run", "process"), "Resident memory of a worker process in bytes."),
    "sidecar_worker_cpu_seconds_total": (("run", "process"), "CPU time that a worker process has used in seconds."),
    "sidecar_build_info": (("version", "python"), "Always 1; versions of this daemon and of its interpreter."),
}


class Exporter(Collector):
    """Collect every `sidecar_*` family. The constructor registers it with `registry`.

    Args:
        registry: The registry that is scraped; never the global one, so that several daemons fit in one process.
        process_metrics: Whether to add the daemon's own `process_*` families (CPU seconds, memory, open files).
    """

    def __init__(self, registry: CollectorRegistry, *, process_metrics: bool = True) -> None:
        self._snapshot: tuple[Metric, ...] = (_build_info(),)
        self._shown: Status | None = None
        registry.register(self)
        if process_metrics:
            ProcessCollector(registry=registry)

    def update(self, status: Status, history: JournalState) -> None:
        """Build the snapshot for the next scrapes. Only the thread that changes `history` may call this."""
        samples, durations = _Samples(status.identity.run), list[Metric]()
        if status.journal_read:
            if status.publisher:
                _export_evaluations(samples, history)
            _export_totals(samples, history.totals)
            durations.append(_durations(status.identity.run, history.totals))
        _export_status(samples, status)
        self._snapshot = (*samples.families.values(), *durations, _build_info())
        self._shown = status

    def collect(self) -> Iterator[Metric]:
        """Yield the last snapshot, and the present resources of the worker processes. Safe in any thread."""
        yield from self._snapshot
        if self._shown is not None and self._shown.workers:
            yield from _worker_usage(self._shown)

    def describe(self) -> Iterator[Metric]:
        """Yield all families without samples, so that `?name[]=` can select them before the first update."""
        for name in _FAMILIES:
            yield empty_family(name)
        yield HistogramMetricFamily(_DURATION, _DURATION_HELP)


_Family = GaugeMetricFamily | CounterMetricFamily


class FamilyFacts(NamedTuple):
    """Describe a family for the reference page, whether or not it has samples."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


def families() -> list[FamilyFacts]:
    """Return a description of every `sidecar_*` family."""
    facts = [FamilyFacts(name, empty_family(name).type, labels, text) for name, (labels, text) in _FAMILIES.items()]
    return [*facts, FamilyFacts(_DURATION, "histogram", _DURATION_LABELS, _DURATION_HELP)]


def empty_family(name: str) -> _Family:
    """Return a family of `sidecar_*` without samples."""
    labels, explanation = _FAMILIES[name]
    return (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(name, explanation, labels=labels)


def _build_info() -> Metric:
    family = empty_family("sidecar_build_info")
    family.add_metric((__version__, platform.python_version()), 1)
    return family


class _Samples:
    """Collect the samples of one run by family. A family without samples is not exported."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.families: dict[str, _Family] = {}

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add one sample, unless the value is None: then there is no such number."""
        if value is not None:
            family = self.families.get(name) or self.families.setdefault(name, empty_family(name))
            family.add_metric((self._run, *labels), value)


def _export_evaluations(samples: _Samples, history: JournalState) -> None:
    """Add the samples of the newest evaluation of each eval set."""
    newest = history.newest
    if newest is None or newest.plan.checkpoint is None:
        return
    for eval_set, latest in history.newest_task.latest.items():
        checkpoint = latest.checkpoint
        _export_eval_set(samples, eval_set, latest.result, history.totals)
        samples.add("sidecar_eval_set_checkpoint_step", checkpoint.step, eval_set)
        about = _label(checkpoint.name), _source(checkpoint.step_source)
        samples.add("sidecar_eval_checkpoint_info", 1, eval_set, *about)
    samples.add("sidecar_eval_checkpoint_step", newest.plan.checkpoint.step)
    samples.add("sidecar_eval_completed_timestamp_seconds", seconds_of(newest.outcome.completed_at))


def _export_eval_set(samples: _Samples, eval_set: str, result: Result, totals: Totals) -> None:
    for name, value in result.metrics.get(eval_set, {}).items():
        samples.add("sidecar_eval_metric", number_of(value), eval_set, name)
        samples.add("sidecar_eval_metric_lower", value.lower, eval_set, name)
        samples.add("sidecar_eval_metric_upper", value.upper, eval_set, name)
        samples.add("sidecar_eval_metric_info", 1, eval_set, name, value.goal)
        # Only here: the best value of a metric that the task no longer has is not exported.
        best = totals.best.get((eval_set, name))
        if best is not None and best.goal == value.goal:
            samples.add("sidecar_eval_best_metric", best.number, eval_set, name)
            samples.add("sidecar_eval_best_step", best.step, eval_set, name)
            about = _label(best.checkpoint), _source(best.step_source)
            samples.add("sidecar_eval_best_info", 1, eval_set, name, *about)
    for name, classes in result.classes.get(eval_set, {}).items():
        for label, value in classes.items():
            samples.add("sidecar_eval_class_metric", number_of(value), eval_set, name, label)
    samples.add("sidecar_eval_examples", result.examples[eval_set], eval_set)
    # A place that never held any is not exported: 0 would be wrong for predictions of a custom test_step, which nobody
    # checks. A place that once held some is exported as 0 when it holds none.
    for place in sorted(place for set_with_some, place in totals.nonfinite if set_with_some == eval_set):
        nonfinite = result.nonfinite.get(eval_set, {}).get(place)
        samples.add("sidecar_eval_nonfinite_examples", nonfinite.examples if nonfinite else 0, eval_set, place)


def _export_totals(samples: _Samples, totals: Totals) -> None:
    """Add the samples of the journal's totals."""
    for status, keys in totals.checkpoints.items():
        samples.add(f"sidecar_checkpoints_{status}_total", len(keys))
    for eval_set, count in totals.changes.items():
        samples.add("sidecar_data_changes_total", count, eval_set)
    for kind, count in totals.failures.items():
        samples.add("sidecar_plans_failed_total", count, kind)


def _durations(run: str, totals: Totals) -> Metric:
    family = HistogramMetricFamily(_DURATION, _DURATION_HELP, labels=_DURATION_LABELS)
    for phase, duration in totals.durations.items():
        family.add_metric((run, phase), duration.cumulative(), duration.total)
    return family


def _export_status(samples: _Samples, status: Status) -> None:
    """Add the samples of this node's status."""
    identity, checkpoints, nodes = status.identity, status.checkpoints, status.nodes
    if checkpoints.newest is not None:
        samples.add("sidecar_newest_checkpoint_step", checkpoints.newest.step)
        samples.add("sidecar_newest_checkpoint_timestamp_seconds", checkpoints.newest.written_at)
        about = _label(checkpoints.newest.checkpoint), _source(checkpoints.newest.step_source)
        samples.add("sidecar_newest_checkpoint_info", 1, *about)
    if identity.role.role == "worker":  # the daemon of a chief does not scan for checkpoints
        samples.add("sidecar_checkpoints_pending", checkpoints.pending)
        samples.add("sidecar_checkpoints_unseen_total", checkpoints.unseen if status.journal_read else None)
    samples.add("sidecar_pending_oldest_timestamp_seconds", checkpoints.oldest_pending)
    samples.add("sidecar_group_size", status.evaluation.group_size)
    samples.add("sidecar_groups_formed_total", status.evaluation.groups_formed)
    for state, count in (dict.fromkeys(NodeState, 0) | nodes.members).items():
        samples.add("sidecar_members", count, state)
    for reason, count in (dict.fromkeys(get_args(Reason), 0) | nodes.left_out_reasons).items():
        samples.add("sidecar_nodes_left_out", count, reason)
    samples.add("sidecar_pins_bytes", status.disk.pins_bytes)
    samples.add("sidecar_saves_bytes", status.disk.saves_bytes)
    samples.add("sidecar_ready", status.unready is None, identity.node)
    samples.add("sidecar_publisher", status.publisher, identity.node)
    samples.add("sidecar_node_info", 1, identity.node, identity.role.role, identity.role.source, identity.version)
    for state, count in Counter(worker.state for worker in status.workers).items():
        samples.add("sidecar_worker_processes", count, state)
    # Labelled by number: ids of workers are never used twice, so every group would leave its series behind.
    for process_number, worker in enumerate(status.workers):
        process = str(process_number)
        samples.add("sidecar_worker_batches", worker.batches, process)
        samples.add("sidecar_worker_expected_batches", worker.total_batches, process)
        samples.add("sidecar_worker_info", 1, process, worker.worker, str(worker.pid))


_USAGE: Final = {
    "process_resident_memory_bytes": "sidecar_worker_resident_memory_bytes",
    "process_cpu_seconds_total": "sidecar_worker_cpu_seconds_total",
}


def _worker_usage(status: Status) -> Iterator[Metric]:
    """Yield the memory and CPU time of each worker process, read from /proc at the scrape, not in the loop."""
    families = {name: empty_family(name) for name in _USAGE.values()}
    for process_number, worker in enumerate(status.workers):
        collector = ProcessCollector(pid=worker.pid.__int__, registry=None)
        for sample in (sample for family in collector.collect() for sample in family.samples):
            if sample.name in _USAGE:
                families[_USAGE[sample.name]].add_metric((status.identity.run, str(process_number)), sample.value)
    yield from families.values()


def _label(name: str) -> str:
    """Return the name of a file as the value of a label: UTF-8, with control characters escaped."""
    return one_line(name)


def _source(source: str | None) -> str:
    return source or "unknown"  # older releases recorded no source


def seconds_of(text: str) -> float | None:
    """Return the Unix time of a record's timestamp; None if it is not one."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
