"""Export Prometheus families about the journal and this node, as one snapshot.

The daemon's loop calls `Exporter.update` after each change. Scrape threads read only the last snapshot, and /proc.
Totals are exported only after the journal was read to its end, because a restart must not look like a counter that was
reset. This module must not import the daemon.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.totals import Best, Totals, number_of
from sidecar.policy.eligibility import Reason
from sidecar.protocol.records import Result
from sidecar.protocol.states import NodeState
from sidecar.publishing.families import (
    DURATION,
    DURATION_HELP,
    DURATION_LABELS,
    FAMILIES,
    OF_RUNS,
    Family,
    family_of,
)
from sidecar.publishing.run_list import RunState, RunSummary
from sidecar.publishing.status import SinkStatus, Status
from sidecar.system.clock import seconds_of
from sidecar.system.plain_text import encodable, one_line
from sidecar.version import version


class Exporter(Collector):
    """Collect every `sidecar_*` family. The constructor registers it with `registry`.

    The registry is never the global one, so that several daemons fit in one process; None: `RunsCollector` collects for
    several runs. `process_metrics`: add the daemon's own `process_*` families (CPU seconds, memory, open files).
    """

    def __init__(
        self,
        registry: CollectorRegistry | None,
        *,
        process_metrics: bool = True,
        sinks: Callable[[], Iterable[SinkStatus]] = tuple,
    ) -> None:
        self._sinks = sinks
        self._of_journal: tuple[tuple[object, ...], tuple[Metric, ...]] = ((), ())  # at a moment of the journal
        self._snapshot: tuple[tuple[Metric, ...], Status] | None = None
        if registry is not None:
            registry.register(self)
            if process_metrics:
                ProcessCollector(registry=registry)

    def update(self, status: Status, history: JournalState) -> None:
        """Take the snapshot for the next scrapes. Only the thread that changes `history` may call this.

        It is called several times for each evaluation, and usually the journal is the same as before.
        """
        moment = status.identity.run, status.journal_read, status.publisher, history.through, history.open is None
        if moment != self._of_journal[0]:
            self._of_journal = moment, tuple(_journal_families(status, history))
        self._snapshot = self._of_journal[1], status

    def collect(self) -> Iterator[Metric]:
        """Yield the last snapshot, and sinks and resources of workers as they are now. Safe in any thread."""
        if self._snapshot is not None:
            of_journal, status = self._snapshot
            samples = _Samples(status.identity.run)
            _export_status(samples, status)
            yield from (*of_journal, *samples.families.values())
            yield from _sinks(status.identity.run, self._sinks())
            if status.workers:
                yield from _worker_usage(status)
        yield _build_info()

    def describe(self) -> Iterator[Metric]:
        """Yield all families without samples, so that `?name[]=` can select them before the first update."""
        for name in FAMILIES.keys() - set(OF_RUNS):
            yield family_of(name)
        yield HistogramMetricFamily(DURATION, DURATION_HELP)


class RunsCollector(Collector):
    """Collect the families of all runs of a process, each family once, with the samples of every run.

    The constructor registers this collector and the process's own families with `registry`.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        exporters: Callable[[], Iterable[Exporter]],
        runs: Callable[[], Iterable[RunSummary]],
    ) -> None:
        self._exporters, self._runs = exporters, runs
        registry.register(self)
        ProcessCollector(registry=registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families of all runs. Safe in any thread."""
        merged = {"sidecar_build_info": _build_info()}
        of_runs = (family for exporter in self._exporters() for family in exporter.collect())
        for family in (*of_runs, *(family for run in self._runs() for family in _run_families(run))):
            if family.name not in merged:
                merged[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
            if family.name != "sidecar_build_info":
                merged[family.name].samples += family.samples
        yield from merged.values()

    def describe(self) -> Iterator[Metric]:
        """Yield all families without samples, as `Exporter.describe` does."""
        yield from Exporter(None).describe()
        yield from map(family_of, OF_RUNS)


def _build_info() -> Metric:
    family = family_of("sidecar_build_info")
    family.add_metric((version(), platform.python_version()), 1)
    return family


def _run_families(run: RunSummary) -> Iterable[Metric]:
    """Return the families about one run among several."""
    samples = _Samples(run.run)
    for state in RunState:
        samples.add("sidecar_run_state", run.state == state, state)
    samples.add("sidecar_run_turn_seconds_total", run.seconds)
    return samples.families.values()


class _Samples:
    """Collect the samples of one run by family. A family without samples is not exported."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.families: dict[str, Family] = {}

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add one sample, unless the value is None: then there is no such number."""
        if value is not None:
            family = self.families.get(name) or self.families.setdefault(name, family_of(name))
            family.add_metric((self._run, *map(encodable, labels)), value)


def _journal_families(status: Status, history: JournalState) -> Iterator[Metric]:
    """Yield the families about the journal, if it was read to its end."""
    if not status.journal_read:
        return
    samples = _Samples(status.identity.run)
    if status.publisher:
        _export_evaluations(samples, history)
    _export_totals(samples, history.totals)
    samples.add("sidecar_records_set_aside_total", history.totals.set_aside.count)
    yield from samples.families.values()
    yield _durations(status.identity.run, history.totals)


def _export_evaluations(samples: _Samples, history: JournalState) -> None:
    """Add the samples of the newest evaluation of each eval set."""
    newest = history.newest
    if newest is None or newest.plan.checkpoint is None:
        return
    best = history.totals.best  # made once: each look at it goes through all metrics
    for eval_set, latest in history.newest_task.latest.items():
        checkpoint = latest.checkpoint
        _export_eval_set(samples, eval_set, latest.result, history.totals, best)
        samples.add("sidecar_eval_set_checkpoint_step", checkpoint.step, eval_set)
        about = _label(checkpoint.name), _source(checkpoint.step_source)
        samples.add("sidecar_eval_checkpoint_info", 1, eval_set, *about)
    samples.add("sidecar_eval_checkpoint_step", newest.plan.checkpoint.step)
    samples.add("sidecar_eval_completed_timestamp_seconds", seconds_of(newest.outcome.completed_at))


def _export_eval_set(
    samples: _Samples, eval_set: str, result: Result, totals: Totals, bests: Mapping[tuple[str, str], Best]
) -> None:
    for name, value in result.metrics.get(eval_set, {}).items():
        samples.add("sidecar_eval_metric", number_of(value), eval_set, name)
        samples.add("sidecar_eval_metric_lower", value.lower, eval_set, name)
        samples.add("sidecar_eval_metric_upper", value.upper, eval_set, name)
        samples.add("sidecar_eval_metric_info", 1, eval_set, name, value.goal)
        # Only here: the best value of a metric that the task no longer has is not exported.
        best = bests.get((eval_set, name))
        if best is not None and best.goal == value.goal:
            samples.add("sidecar_eval_best_metric", best.number, eval_set, name)
            samples.add("sidecar_eval_best_step", best.step, eval_set, name)
            about = _label(best.checkpoint), _source(best.step_source)
            samples.add("sidecar_eval_best_info", 1, eval_set, name, *about)
    for name, classes in result.classes.get(eval_set, {}).items():
        for label, value in classes.items():
            samples.add("sidecar_eval_class_metric", number_of(value), eval_set, name, label)
    for label, one in result.slices.get(eval_set, {}).items():
        samples.add("sidecar_eval_slice_examples", one.examples, eval_set, label)
        for name, value in one.metrics.items():
            samples.add("sidecar_eval_slice_metric", number_of(value), eval_set, name, label)
    samples.add("sidecar_eval_examples", result.counted().get(eval_set), eval_set)
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
    family = HistogramMetricFamily(DURATION, DURATION_HELP, labels=DURATION_LABELS)
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
    for each in status.evaluation.finished if status.journal_read and status.publisher else ():
        for name, value in each.metrics.items():
            samples.add("sidecar_eval_partial_metric", number_of(value), each.eval_set, name)
    samples.add("sidecar_group_size", status.evaluation.group_size)
    samples.add("sidecar_groups_formed_total", status.evaluation.groups_formed)
    for state, count in (dict.fromkeys(NodeState, 0) | nodes.members).items():
        samples.add("sidecar_members", count, state)
    for reason, count in (dict.fromkeys(get_args(Reason), 0) | nodes.left_out_reasons).items():
        samples.add("sidecar_nodes_left_out", count, reason)
    samples.add("sidecar_pins_bytes", status.disk.pins_bytes)
    samples.add("sidecar_saves_bytes", status.disk.saves_bytes)
    samples.add("sidecar_journal_failing", status.journal_problems)
    samples.add("sidecar_exports_bytes", status.disk.exports_bytes)
    samples.add("sidecar_exports_failing", status.disk.failing_exports)
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


def _sinks(run: str, sinks: Iterable[SinkStatus]) -> Iterator[Metric]:
    """Yield how far each sink is behind, as it is at the scrape."""
    samples = _Samples(run)
    for sink in sinks:
        samples.add("sidecar_sink_pending_results", sink.pending, sink.name)
        samples.add("sidecar_sink_oldest_pending_timestamp_seconds", sink.oldest_pending, sink.name)
        samples.add("sidecar_sink_failing", sink.failing is not None, sink.name)
        samples.add("sidecar_sink_refused_results_total", sink.refused, sink.name)
        samples.add("sidecar_early_stop", sink.stop_signalled)
    yield from samples.families.values()


_USAGE: Final = {
    "process_resident_memory_bytes": "sidecar_worker_resident_memory_bytes",
    "process_cpu_seconds_total": "sidecar_worker_cpu_seconds_total",
}


def _worker_usage(status: Status) -> Iterator[Metric]:
    """Yield the memory and CPU time of each worker process, read from /proc at the scrape, not in the loop."""
    families = {name: family_of(name) for name in _USAGE.values()}
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
