"""Render log events as short sentences, for people at a terminal. Pure.

Events without a sentence here are shown with their fields. JSON and `--verbose` show all fields of all events.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sidecar.protocol.records import shown_step
from sidecar.protocol.states import FailureKind
from sidecar.system.bucket_url import is_url
from sidecar.system.plain_text import counted, number

Event = Mapping[str, Any]

_NOT_NUMBERS: Final = {"event", "level", "timestamp", "run", "node", "plan", "checkpoint", "step", "workers"}


def sentence(event: Event) -> str | None:
    """Return an event as a sentence; empty if people do not need the event, None if there is no sentence for it."""
    try:
        return _SENTENCES[event["event"]](event)
    except KeyError:  # there is no sentence, or the event lacks a field of it
        return None


def _started(event: Event) -> str:
    doing = "evaluates nothing" if event["role"] == "chief" else "evaluates"
    if "runs" in event:
        return (
            f"sidecar-evaluator {event['version']}: node {event['node']}, which {doing} ({event['role_source']})\n"
            f"  runs: {', '.join(event['runs'])}\n  status page: {event['http']}"
        )
    state = f"\n  state: {event['state_dir']}" if is_url(event["checkpoint_dir"]) else ""
    return (
        f"sidecar-evaluator {event['version']}: run {event['run']} on node {event['node']}, which {doing} "
        f"({event['role_source']})\n  checkpoints: {event['checkpoint_dir']}"
        f"{state}\n  status page: {event['http']}"
    )


def _opened(event: Event) -> str:
    again = f", attempt {event['attempt']}" if event["attempt"] > 1 else ""
    workers = counted(event["workers"], "worker")
    return f"{_name(event)}: evaluating with {workers} on {', '.join(event['nodes'])}{again}"


def _succeeded(event: Event) -> str:
    numbers = {key: value for key, value in event.items() if "." in key and key not in _NOT_NUMBERS}
    several = len({key.partition(".")[0] for key in numbers}) > 1
    best = set(event.get("best", ()))
    shown = [
        f"{key if several else key.partition('.')[2]} {number(value)}{' (best)' if key in best else ''}"
        for key, value in numbers.items()
    ]
    examples = f"{' + '.join(map(str, event['examples'].values()))} examples, " if event["examples"] else ""
    lag = f", lag {event['lag']:.1f} s" if "lag" in event else ""
    return f"{_name(event)}: {'  '.join(shown)}  [{examples}{event['took'] or 0.0:.1f} s{lag}]"


def _failed(event: Event) -> str:
    where = "" if event["node"] is None else f" on {event['node']}"
    if event["kind"] == FailureKind.DRAINED:
        return f"{_name(event)}: not evaluated yet: {event['message']}{where}"
    logs = f"\n  log of the worker process: {event['log']}" if event.get("log") else ""
    return f"{_name(event)}: attempt {event['attempt']} failed{where}: {event['kind']}: {event['message']}{logs}"


def _draining(event: Event) -> str:
    if not event["evaluating"]:
        return f"{event['signal']}: ending"
    again = "Ctrl-C" if event["signal"] == "SIGINT" else "the signal"
    ends = f"ending after this evaluation, in {event['drain_seconds']:g} s at the latest"
    return f"{event['signal']}: {ends}; {again} again ends at once; results are kept"


def _worker_lost(event: Event) -> str:
    kind = f"{event['kind']}: " if event.get("kind") else ""
    logs = f"\n  log: {event['log']}" if event.get("log") else ""
    return f"worker process {event['worker']}: {kind}{event['message']}{logs}"


def _worker_starved(event: Event) -> str:
    remedy = (
        "it is replaced by one that takes turns with them" if event["restarted"] else "it takes turns with them now"
    )
    return (
        f"worker process {event['worker']} waited {event['waited_seconds']:.0f} s for processors, which other programs "
        f"use: {remedy}"
    )


def _subject(event: Event) -> str:
    return "the end of the run" if event["checkpoint"] is None else f"the result of {event['checkpoint']}"


def _remedied(text: str) -> Callable[[Event], str]:
    return lambda event: f"{text.format_map(event)}: {event['remedy']}"


def _said(text: str) -> Callable[[Event], str]:
    return text.format_map


_SENTENCES: Final[Mapping[str, Callable[[Event], str]]] = {
    "settings_read": _said("settings are read from {file}"),
    "daemon_started": _started,
    "chief_idles": _remedied("this node evaluates nothing, as it is the training job's chief ({source})"),
    "setting_ineffective": _said("{message}"),
    "role_uncertain": _remedied("{warning}"),
    "journal_read": lambda event: f"{event['evaluated']} checkpoints were evaluated before" * bool(event["evaluated"]),
    "steps_found": lambda event: event["how"] + (f": {event['remedy']}" if "remedy" in event else ""),
    "task_check_begun": _said(
        "importing the task {task} with {framework}: that can take half a minute, or minutes on a busy machine"
    ),
    "task_checked": lambda event: f"task {event['task']} is fine: it evaluates {', '.join(event['eval_sets'])}",
    "task_changed": _said("the code of the task {task} has changed"),
    "checkpoint_found": lambda event: f"{_name(event)}: found",
    "plan_opened": _opened,
    "evaluation_succeeded": _succeeded,
    "plan_failed": _failed,
    "record_set_aside": _remedied("records of the journal that were set aside: {count}, the newest is {reason}"),
    "checkpoint_settled": lambda event: f"{_name(event)}: {event['verdict']}: {event['reason']}",
    "nonfinite_examples": lambda event: f"{_name(event)}: {'; '.join(event['found'])}",
    "worker_started": lambda _: "",
    "worker_placed": lambda _: "",
    "cluster_released": _said("nothing to evaluate for {idle_seconds:g} s: the cluster got its machines back"),
    "workers_taken_over": lambda _: "",
    "worker_ready": lambda _: "",
    "worker_exited": _worker_lost,
    "worker_failed": _worker_lost,
    "worker_starved": _worker_starved,
    "worker_overran": _worker_lost,
    "storage_failed": _said("storage: {message}"),
    "storage_recovered": _said("storage answers again"),
    "sink_failed": _said("{sink}: {reason}; {pending} events wait"),
    "sink_recovered": _said("{sink}: works again"),
    "sink_progress_damaged": _said("{sink}: {path} is damaged: {follows}"),
    "sink_refused": lambda event: f"{event['sink']}: {_subject(event)} was refused: {event['reason']}",
    "early_stop_signalled": _said("training is told to stop: {reason}"),
    "best_uploaded": _said("uploaded {export} to MLflow in {seconds:g} s"),
    "best_upload_failed": _said("the best export could not be uploaded: {reason}"),
    "checkpoint_dir_missing": _remedied("the checkpoint directory does not exist"),
    "many_checkpoints": _said("{count} checkpoints are in the directory, {supported} are supported: {remedy}"),
    "checkpoints_in_subfolders": _said("no checkpoint was found: {remedy}"),
    "nothing_seen": _remedied("no checkpoint was seen in {seconds:g} s"),
    "draining": _draining,
    "stopped_at_once": _said("{signal} again: stopped at once"),
    "left_unheard": _said("ended before it could inform the other nodes: {unready}"),
    "loop_was_stopped": _said("this process was stopped for {seconds} s"),
    "run_begun_anew": _said("a new run begins: {reason}"),
    "no_runs_found": lambda event: f"no directory matches {', '.join(event['runs'])} yet",
    "runs_not_listed": _said("the directories of the runs cannot be listed: {reason}"),
    "runs_left_out": _said("{count} runs wait until others end, since {most} are the most; the first one is {first}"),
    "run_begun": _said("the run begins: {checkpoint_dir}"),
    "run_settings_ignored": _said("{file} is not read, because {reason}"),
    "run_delayed": _said("the run cannot begin yet: {reason}"),
    "run_failed": _said("the run is not served, and begins again in {again_seconds:.0f} s: {reason}"),
    "run_gone": _said("the run ends, as {place} is gone"),
    "eval_set_changed": lambda event: (
        f"{_name(event)}: other data in {', '.join(event['eval_sets'])}: {event['remedy']}"
    ),
    "http_access_read": _said("HTTP: {file} was read again"),
    "http_access_failed": _remedied("HTTP: {message}"),
    "file_events_unavailable": _remedied("no file events: {reason}"),
    "step_unknown": _remedied("{checkpoint}: its step is unknown"),
    "checkpoints_deleted_unseen": _remedied(
        "{count} checkpoints like {last} of {series} were deleted before this node saw them"
    ),
    "checkpoint_not_held": _remedied("{checkpoint} cannot be held: {reason}"),
    "checkpoint_entry_failed": _remedied("{entry} cannot be read or held: {reason}"),
    "entry_failed": _said("{message}"),
    "checkpoint_exported": _said("{checkpoint}: exported as one of the best"),
    "best_changed": _said("{checkpoint}: the best export now, {better}"),
    "export_removed": _said("{checkpoint}: not among the best any more, its export was removed"),
    "export_returned": _said("{checkpoint}: taken from the exports, as it is evaluated again"),
    "export_failed": _remedied("{entry} cannot be exported: {reason}"),
    "export_settings_differ": _remedied("nodes export different checkpoints: {found}"),
    "old_evaluations_removed": _said("the saved metric states of {count} old evaluations were removed"),
    "saves_left": _remedied("{folder} could not be removed: {reason}"),
    "best_metric_unknown": _said("{message}"),
    "worker_not_started": _said("a worker process could not be started: {message}"),
    "worker_logs_moved": _said("{reason}"),
    "task_check_interrupted": _said("the check of the task was interrupted, and is made again: {message}"),
    "eval_ports_public": _remedied("worker ports {ports} are open on a public address ({addresses})"),
    "run_ended": lambda event: f"the run ended: {event['reason']}",
}


def _name(event: Event) -> str:
    step = shown_step(event.get("step"), event.get("step_source"))
    return f"{event['checkpoint']} (step {step})" if step else str(event["checkpoint"])
