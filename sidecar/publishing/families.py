"""Name every Prometheus family of the daemon, with its labels and its help text. Data only.

`prometheus` fills them; docs/reference/metrics.md is written from them.
"""

from typing import Final, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

_ONE = ("run",)
_METRIC = ("run", "eval_set", "metric")
DURATION: Final = "sidecar_evaluation_phase_duration_seconds"
DURATION_LABELS: Final = ("run", "phase")
DURATION_HELP: Final = "Seconds that successful evaluations spent in each phase, on the slowest worker."

# Families of information are gauges of 1: as Info, OpenMetrics would strip `_info` and see `sidecar_eval_metric` twice.
FAMILIES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "sidecar_eval_metric": (_METRIC, "Value of a metric, over all workers, when its eval set was evaluated last."),
    "sidecar_eval_metric_lower": (_METRIC, "Lower end of the metric's 95 % confidence interval."),
    "sidecar_eval_metric_upper": (_METRIC, "Upper end of the metric's 95 % confidence interval."),
    "sidecar_eval_metric_info": ((*_METRIC, "goal"), "Always 1; goal says whether more (max) or less (min) is better."),
    "sidecar_eval_partial_metric": (
        _METRIC,
        "Value of a metric in the evaluation that runs now, while other eval sets are evaluated: nothing is decided.",
    ),
    "sidecar_eval_best_metric": (
        _METRIC,
        "Best value of a metric over the checkpoints evaluated with the newest data and task.",
    ),
    "sidecar_eval_best_step": (_METRIC, "Training step of the checkpoint with the best value of a metric."),
    "sidecar_eval_best_info": (
        (*_METRIC, "checkpoint", "step_source"),
        "Always 1; the checkpoint with the best value of a metric, and how its step was found.",
    ),
    "sidecar_eval_class_metric": (
        (*_METRIC, "class"),
        "Value of a metric for one class, where there are few, when its eval set was evaluated last.",
    ),
    "sidecar_eval_slice_metric": (
        (*_METRIC, "slice"),
        "Value of a metric for one slice of Task(slices=…), of at most 1,000, when its eval set was evaluated last.",
    ),
    "sidecar_eval_slice_examples": (
        ("run", "eval_set", "slice"),
        "Examples of a slice when its eval set was evaluated last.",
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
    "sidecar_records_set_aside_total": (
        _ONE,
        "Records of the journal that break a limit or an invariant, so that no daemon wrote them.",
    ),
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
    "sidecar_journal_failing": (
        _ONE,
        "Snapshots and segments of the journal that this node could not write, so that it grows; see its status.",
    ),
    "sidecar_exports_bytes": (_ONE, "Disk space of the best checkpoints that export_best retains."),
    "sidecar_exports_failing": (
        _ONE,
        "Exports of the best checkpoints that could not be made or removed in the newest scan, and foreign entries.",
    ),
    "sidecar_ready": (
        ("run", "node"),
        "1 while the node can do its part (a chief has none), else 0; /readyz has the reason.",
    ),
    "sidecar_publisher": (("run", "node"), "1 on the one node that exports the sidecar_eval_* families, else 0."),
    "sidecar_node_info": (
        ("run", "node", "role", "role_source", "version"),
        "Always 1; this node's role and where it was found.",
    ),
    "sidecar_sink_pending_results": (
        ("run", "sink"),
        "Results and other events that a sink, such as remote_write, does not have yet; on the publishing node.",
    ),
    "sidecar_sink_oldest_pending_timestamp_seconds": (
        ("run", "sink"),
        "Unix time of the oldest result or other event that a sink does not have; absent if there is none.",
    ),
    "sidecar_sink_failing": (
        ("run", "sink"),
        "1 if the newest delivery to a sink failed, else 0; `sink_failed` in the log has the reason.",
    ),
    "sidecar_sink_refused_results_total": (
        ("run", "sink"),
        "Results and other events that a sink will never have, since this daemon started; those of hooks are in files.",
    ),
    "sidecar_early_stop": (
        _ONE,
        "1 while the signal to stop training is there, else 0; on the publishing node, if early_stop_patience is set.",
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
    "sidecar_run_state": (
        ("run", "state"),
        "1 for the state of each run of a process that serves several (`runs`), else 0; absent if it serves one.",
    ),
    "sidecar_run_turn_seconds_total": (
        _ONE,
        "Seconds in which a run used worker processes on this node; only of a process that serves several runs.",
    ),
    "sidecar_build_info": (("version", "python"), "Always 1; versions of this daemon and of its interpreter."),
}

OF_RUNS: Final = ("sidecar_run_state", "sidecar_run_turn_seconds_total")
"""The families that only a process of several runs exports."""

Family = GaugeMetricFamily | CounterMetricFamily


class FamilyFacts(NamedTuple):
    """Describe a family for the reference page, whether or not it has samples."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


def families() -> list[FamilyFacts]:
    """Return a description of every `sidecar_*` family."""
    facts = [FamilyFacts(name, family_of(name).type, labels, text) for name, (labels, text) in FAMILIES.items()]
    return [*facts, FamilyFacts(DURATION, "histogram", DURATION_LABELS, DURATION_HELP)]


def family_of(name: str) -> Family:
    """Return a family without samples."""
    labels, explanation = FAMILIES[name]
    return (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(name, explanation, labels=labels)
