"""Write log lines to standard error: one per event, as text for people on a terminal, else as JSON.

All output of this process goes through here, including that of the standard library's `logging`. Lines about the
journal are views of its records, so they cannot disagree with the gauges. `commands.bootstrap` calls `configure`, and
the daemon calls `entry_logged`. This module must not import either of them.
"""

import atexit
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, TextIO

from sidecar.coordination.journal_state import Closed, Entry, Settled
from sidecar.coordination.totals import Best
from sidecar.protocol.records import Outcome, Plan
from sidecar.protocol.states import OutcomeStatus, Verdict
from sidecar.publishing.line_writer import LineWriter
from sidecar.publishing.plain_structlog import structlog
from sidecar.publishing.sentences import sentence
from sidecar.system.clock import seconds_between, timestamp
from sidecar.system.event_log import EventLog
from sidecar.system.plain_text import one_line

EventDict = structlog.typing.EventDict
Processor = structlog.typing.Processor
LogFormat = Literal["console", "json"]

_YELLOW: Final = "\x1b[33m"
_PLAIN: Final = "\x1b[0m"
_TEXTS: Final = ("message", "reason", "remedy", "warning")  # sentences, and tracebacks of the user's code

_FIRST: Final = "daemon_started"  # the line that names the run and the node


def configure(
    log_format: LogFormat | None = None, stream: TextIO | None = None, *, verbose: bool = False, several: bool = False
) -> None:
    """Send every log line to `stream` (default: standard error) as text or as JSON lines.

    Without a format, a terminal gets text and everything else JSON. Text is sentences, or with `verbose` every event
    and all of its fields. Messages of libraries that use `logging` are written from WARNING on. Another call replaces
    the settings of the last one. With `several` runs, text names the run of an event.
    """
    stream = sys.stderr if stream is None else stream
    if log_format is None:
        log_format = "console" if stream.isatty() else "json"
    lines = LineWriter(stream, partial(_lines_lost, log_format))
    atexit.register(lines.close)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering = (
        _console(colors=stream.isatty(), verbose=verbose, several=several) if log_format == "console" else _json()
    )
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,  # a later call must also change module-level loggers
    )
    bridge = _Bridge(lines)
    bridge.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Bridge)]:
        root.removeHandler(handler)
    root.addHandler(bridge)
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)  # else they would appear as plain text between JSON lines


def entry_logged(
    log: EventLog,
    entry: Entry | Plan,
    best: Mapping[tuple[str, str], Best] = MappingProxyType({}),
    log_of: Callable[[Closed], str | None] = lambda _: None,
) -> None:
    """Write one line for an entry of the journal: a plan was opened, a plan was closed, or a checkpoint was settled.

    A plan that only settles checkpoints gets no line, because an entry for each of these checkpoints follows.

    `best`: the best evaluation so far, by eval set and metric. `log_of`: returns the log file of the worker of this
    node that took part in a plan, or None.
    """
    if isinstance(entry, Plan):
        if entry.checkpoint is not None and entry.members is not None:
            log.info(
                "plan_opened",
                **_about(entry),
                attempt=entry.attempt,
                workers=len(entry.members),
                nodes=list(dict.fromkeys(member.node for member in entry.members)),
            )
    elif isinstance(entry, Closed):
        _closed(log, entry, best, log_of(entry))
    else:
        _settled(log, entry)


def _closed(log: EventLog, closed: Closed, best: Mapping[tuple[str, str], Best], worker_log: str | None) -> None:
    """Log the end of a plan: its numbers, or its failure."""
    plan, outcome = closed.plan, closed.outcome
    if outcome.status == OutcomeStatus.FAILED or outcome.result is None:
        log_field = {} if worker_log is None else {"log": worker_log}
        log.warning("plan_failed", **_about(plan), attempt=plan.attempt, **_failure(outcome), **log_field)
        return
    result = outcome.result
    numbers = {
        f"{eval_set}.{name}": value.number
        for eval_set, values in result.metrics.items()
        for name, value in values.items()
    }
    seconds = {phase: round(length, 3) for phase, length in result.phases.items()}
    lag = {} if result.lag_seconds is None else {"lag": result.lag_seconds}
    about = _about(plan)
    best_metrics = [f"{eval_set}.{name}" for (eval_set, name), top in best.items() if top.folder == plan.folder]
    marked = {"best": best_metrics} if best_metrics else {}
    notes = {"notes": list(result.notes)} if result.notes else {}
    log.info(
        "evaluation_succeeded",
        **about,
        workers=result.workers,
        **numbers,
        examples=result.counted(),
        took=seconds_between(plan.proposed_at, outcome.completed_at),
        **lag,
        seconds=seconds,
        **marked,
        **notes,
    )
    if result.changed:
        remedy = "its numbers cannot be compared with earlier ones; give data that changed a new name"
        log.warning("eval_set_changed", **about, eval_sets=list(result.changed), remedy=remedy)
    if result.nonfinite:
        log.warning("nonfinite_examples", **about, found=result.warnings())


def _settled(log: EventLog, settled: Settled) -> None:
    """Log a checkpoint that was settled without an evaluation."""
    settlement = settled.settlement
    write = log.info if settlement.verdict in (Verdict.SKIPPED, Verdict.REQUEUED) else log.warning
    write(
        "checkpoint_settled",
        plan=settled.plan.plan,
        checkpoint=settlement.name,
        step=settlement.step,
        verdict=settlement.verdict,
        reason=settlement.reason,
    )


def _about(plan: Plan) -> dict[str, Any]:
    """Return the fields that every event about a plan has."""
    checkpoint = plan.checkpoint
    return {
        "plan": plan.plan,
        "checkpoint": checkpoint and checkpoint.name,
        "step": checkpoint and checkpoint.step,
        **({"step_source": "order"} if checkpoint and checkpoint.step_source == "order" else {}),
    }


def _failure(outcome: Outcome) -> dict[str, Any]:
    return {"kind": outcome.kind, "node": outcome.node, "rank": outcome.rank, "message": outcome.message}


def _json() -> list[Processor]:
    """Return the processors that write JSON lines."""
    # Tracebacks are logged without local variables, which may hold secrets from the environment.
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]


def _console(*, colors: bool, verbose: bool, several: bool) -> list[Processor]:
    """Return the processors that write text for a terminal."""
    render = structlog.dev.ConsoleRenderer(
        colors=colors, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
    )
    fields: list[Processor] = [*([] if several else [_brief]), _printable, render]
    return fields if verbose else [_Sentences(fields, colors=colors, several=several)]


class _Sentences:
    """Write an event as a sentence. An event without a sentence is written with its fields."""

    def __init__(self, otherwise: list[Processor], *, colors: bool, several: bool) -> None:
        self._otherwise, self._several = otherwise, several
        self._colors = (_YELLOW, _PLAIN) if colors else ("", "")

    def __call__(self, log: Any, method: str, event: EventDict) -> Any:
        text = None if "exception" in event or "exc_info" in event else sentence(_escaped(event))
        if text is None:
            rendered: Any = event
            for process in self._otherwise:
                rendered = process(log, method, rendered)
            return rendered
        if not text:
            raise structlog.DropEvent
        at = str(event.get("timestamp", ""))[11:19]
        start, end = ("", "") if event.get("level") == "info" else self._colors
        text = f"{one_line(event['run'])}: {text}" if self._several and "run" in event else text
        return f"{at} {start}{'' if event.get('level') == 'info' else 'warning: '}{text}{end}"


def _escaped(event: EventDict) -> dict[str, Any]:
    """Escape control characters. A message keeps its lines, indented so that none of them looks like an event."""
    return {
        key: _unescaped_lines(value) if key in _TEXTS and isinstance(value, str) else _without_controls(value)
        for key, value in event.items()
    }


def _unescaped_lines(text: str) -> str:
    return "\n    ".join(_without_controls(line) for line in text.splitlines())


def _without_controls(value: Any) -> Any:
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list | tuple):
        return [_without_controls(item) for item in value]
    return value


def _lines_lost(log_format: LogFormat, count: int) -> str:
    """Return the line that tells, once the log is taken again, how many lines are missing before it."""
    event = {
        "event": "log_lines_lost",
        "lines": count,
        "remedy": "whatever reads standard error stopped, or its disk was full",
        "level": "warning",
        "timestamp": timestamp(time.time()),
    }
    return json.dumps(event) if log_format == "json" else f"warning: {count} lines of the log are missing here"


def _brief(_log: Any, _method: str, event: EventDict) -> EventDict:
    """Leave out the run, the node and the date, which a person at the terminal knows."""
    kept = {key: value for key, value in event.items() if key not in ("run", "node") or event["event"] == _FIRST}
    kept["timestamp"] = str(event.get("timestamp", ""))[11:19]
    return {key: _rounded(value) for key, value in kept.items()}


def _rounded(value: Any) -> Any:
    """Return a value with its numbers rounded to six digits."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _printable(_log: Any, _method: str, event: EventDict) -> EventDict:
    """Escape control characters, because the name of a file must not control the terminal."""
    return {
        key: repr(value) if isinstance(value, str) and not value.isprintable() else value
        for key, value in event.items()
    }


class _Bridge(logging.Handler):
    """Write the messages that libraries send to `logging` to the same stream."""

    def __init__(self, lines: LineWriter) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, formatted like every other line."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a faulty log call of a library is handled as `logging` does
            self.handleError(record)
        else:
            self._lines.msg(line)
