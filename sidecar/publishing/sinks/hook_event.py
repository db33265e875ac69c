"""Make the JSON that hooks get from an event. Pure. docs/how-to/hooks.md describes it, for people who write receivers.

The schema is docs/reference/hook-event.schema.json. Fields may be added to a version; a change of a field is a new one.
"""

import json
import math
from typing import Any, Final, Literal

from sidecar.coordination.totals import Best
from sidecar.protocol.records import Checkpoint, Nonfinite, Result, shown_step
from sidecar.publishing.report import numbers
from sidecar.publishing.sinks.best_so_far import BestSoFar, value_of
from sidecar.publishing.sinks.sink import Evaluation, Event, Failure, RunEnd
from sidecar.system.clock import timestamp
from sidecar.system.plain_text import number, one_line

HookName = Literal["result", "best", "failure", "nan", "end"]

SCHEMA: Final = 1
"""Version of the JSON."""


def is_nonfinite(result: Result) -> bool:
    """Return whether a metric of an evaluation is NaN or infinite, or its data or predictions hold such numbers."""
    metrics = [
        *result.metrics.values(),
        *(classes for by_set in result.classes.values() for classes in by_set.values()),
    ]
    return bool(result.nonfinite) or any(value.value is None for values in metrics for value in values.values())


def event_json(hook: HookName, event: Event, best: BestSoFar, *, test: bool = False) -> bytes:
    """Return an event for a hook as strict JSON, in UTF-8. `test`: whether it is a sample that a person asked for."""
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "event": hook,
        "id": event_id(hook, event),
        "run": event.run,
        "time": timestamp(event.milliseconds / 1000),
        "plan": event.plan,
        "text": ("TEST: " if test else "") + sentence(hook, event, best),
    }
    if test:
        head["test"] = True
    text = json.dumps(head | _details(event, best), allow_nan=False, ensure_ascii=False)
    return text.encode(errors="replace")  # bytes of a name that are no text would be refused by strict readers


def event_id(hook: HookName, event: Event) -> str:
    """Return the id of an event for one hook: the same whoever delivers it, and however often."""
    return f"{event.id}-{hook}"


def sentence(hook: HookName, event: Event, best: BestSoFar) -> str:
    """Return the event as one line for people, such as the text of a chat message."""
    if isinstance(event, RunEnd):
        text = f"the run ended: {event.reason}; {event.checkpoints.get('evaluated', 0)} checkpoints were evaluated"
        text += f", {event.failed} failed" if event.failed else ""
    elif isinstance(event, Failure):
        verb = event.kind if event.final else f"attempt {event.attempt} failed: {event.kind}"
        text = f"{event.checkpoint}{_step(event.step, None)}: {verb}: {event.message}"
    else:
        checkpoint = event.checkpoint
        text = f"{checkpoint.name}{_step(checkpoint.step, checkpoint.step_source)}: {_told(hook, event, best)}"
    return one_line(f"run {event.run}: {text}")


def _told(hook: HookName, event: Evaluation, best: BestSoFar) -> str:
    result = event.result
    if hook == "nan":
        places = [
            f"{eval_set}/{name} is {value.hex}"
            for eval_set, values in result.metrics.items()
            for name, value in values.items()
            if value.value is None
        ]
        return "; ".join([*places, *result.warnings()]) or "a number of a class is not finite"
    if hook == "best" and best.best is not None:
        (eval_set, name), _ = best.best
        value = value_of(event, (eval_set, name))
        return f"new best {eval_set}/{name} {'' if value is None else number(value.number)}".rstrip()
    return ", ".join(
        f"{eval_set}/{name} {number(value.number)}"
        for eval_set, values in result.metrics.items()
        for name, value in values.items()
    )


def _step(step: int | None, source: str | None) -> str:
    return f" (step {shown_step(step, source)})" if step is not None else ""


def _details(event: Event, best: BestSoFar) -> dict[str, Any]:
    if isinstance(event, RunEnd):
        return {
            "reason": event.reason,
            "failed": event.failed,
            "checkpoints": dict(event.checkpoints),
            "bests": {name: _best_of_run(each) for name, each in event.best.items()},
        }
    if isinstance(event, Failure):
        return {
            "checkpoint": {"name": one_line(event.checkpoint), "digest": event.digest, "step": event.step},
            "final": event.final,
            "kind": event.kind,
            "message": event.message,
            "attempt": event.attempt,
            "node": event.node,
            "best": _best(best),
        }
    result = event.result
    return {
        "checkpoint": _checkpoint(event.checkpoint),
        "metrics": {eval_set: numbers(values) for eval_set, values in result.metrics.items()},
        "examples": result.counted(),
        "workers": result.workers,
        "changed": list(result.changed),
        "nonfinite": {
            eval_set: {place: _nonfinite(found) for place, found in places.items()}
            for eval_set, places in result.nonfinite.items()
        },
        "best": _best(best),
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "name": one_line(checkpoint.name),
        "digest": checkpoint.digest,
        "step": checkpoint.step,
        "step_source": checkpoint.step_source,
    }


def _nonfinite(found: Nonfinite) -> dict[str, Any]:
    return {"examples": found.examples, "first_batch": found.first_batch, "first_example": found.first_example}


def _best(best: BestSoFar) -> dict[str, Any] | None:
    if best.best is None:
        return None
    metric, evaluation = best.best
    value = value_of(evaluation, metric)
    assert value is not None  # else it would not be the best
    return {
        "metric": "/".join(metric),
        "value": value.value,
        "hex": value.hex,
        "checkpoint": _checkpoint(evaluation.checkpoint),
        "evaluations_since": best.since,
    }


def _best_of_run(best: Best) -> dict[str, Any]:
    return {
        "value": best.number if math.isfinite(best.number) else None,
        "hex": best.hex,
        "checkpoint": one_line(best.checkpoint),
        "step": best.step,
    }
