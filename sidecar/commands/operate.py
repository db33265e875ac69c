"""What a person asks of a run from outside: who is there and what is going on, and to try a checkpoint again.

Read from shared storage alone, so it works from any node and when every daemon is down.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sidecar.agreement.journal import Journal, read_history, read_run
from sidecar.agreement.members import Members
from sidecar.agreement.storage import Storage
from sidecar.checkpoints.catalog import Catalog
from sidecar.clock import Clock, timestamp
from sidecar.errors import SettingsError, StorageError
from sidecar.history import Closed, History, Settled
from sidecar.records import Heartbeat, Plan, Settlement

if TYPE_CHECKING:
    from rich.console import RenderableType

_TRIES: Final = 20  # other daemons write the journal meanwhile; each try reads on to its end


@dataclass(frozen=True, slots=True)
class Standing:
    """A run as its files tell it."""

    history: History
    members: tuple[Heartbeat, ...]
    pending: tuple[str, ...]  # names of complete checkpoints that need an evaluation


def standing(storage: Storage, catalog: Catalog) -> Standing:
    """Read everything; raises `StorageError` if storage does not answer."""
    run = read_run(storage)
    if run is None:
        return Standing(History(), (), ())
    history = read_history(storage)
    members = Members(storage, run).read_all().heartbeats
    task = next((member.task for member in members if member.task is not None), None)
    found = [found.checkpoint for found in catalog.look().found]
    return Standing(history, members, tuple(each.name for each in found if not history.is_settled(each.key, task)))


def as_json(run: str, found: Standing) -> dict[str, Any]:
    """Strict JSON of `sidecar status --json`."""
    newest, plan = found.history.newest, found.history.open
    return {
        "run": run,
        "members": [
            {"node": each.node, "role": each.role, "state": each.state, "version": each.version, "beat": each.beat}
            for each in found.members
        ],
        "plan": plan and {"plan": plan.plan, "checkpoint": plan.checkpoint and plan.checkpoint.name},
        "newest": newest and newest.plan.checkpoint and newest.plan.checkpoint.name,
        "evaluated": len(found.history.succeeded),
        "settled": len(found.history.settled),
        "pending": list(found.pending),
    }


def lines(run: str, found: Standing) -> "Iterator[RenderableType]":
    """The same for people."""
    from rich.table import Table  # noqa: PLC0415 - only people need it

    history = found.history
    if not history.through and not found.members:
        yield f"run {run}: no daemon was here yet"
        return
    table = Table("node", "role", "state", "version", "workers", title=f"run {run}", title_justify="left")
    for each in found.members:
        workers = sum(slot.worker is not None for slot in each.slots)
        table.add_row(each.node, each.role, each.state, each.version, str(workers))
    yield table
    if history.open is not None and history.open.checkpoint is not None:
        members = history.open.members or ()
        nodes = ", ".join(dict.fromkeys(member.node for member in members))
        yield f"plan {history.open.plan}: {history.open.checkpoint.name} with {len(members)} workers on {nodes}"
    last = next((entry for entry in reversed(history.entries) if isinstance(entry, Closed)), None)
    if last is not None and last.plan.checkpoint is not None:
        ended = f"{last.outcome.status} at {last.outcome.completed_at}"
        why = f" ({last.outcome.kind})" if last.outcome.kind else ""
        yield f"last: {last.plan.checkpoint.name} {ended}{why}"
    waiting = ", ".join(found.pending[:5]) + (" …" if len(found.pending) > 5 else "")  # noqa: PLR2004 - one line
    yield f"evaluated {len(history.succeeded)}, settled otherwise {len(history.settled)}, waiting {len(found.pending)}"
    if waiting:
        yield f"waiting: {waiting}"


def requeue(storage: Storage, name: str, *, by: str, clock: Clock) -> Settlement:
    """Let a checkpoint that was given up be tried again; the record of it is written into the journal.

    Raises:
        SettingsError: there is nothing to reopen under that name.
        StorageError: an evaluation is going on, or others write the journal all the time: try again later.
    """
    run = read_run(storage)
    if run is None:
        raise SettingsError("there is no run here yet: look with `sidecar status`, or name another --checkpoint-dir")
    journal, history = Journal(storage, run), History()
    for _ in range(_TRIES):
        for record in journal.read_new():
            history.apply(record)
        given_up = [each.settlement for each in history.entries if isinstance(each, Settled)]
        known = [each for each in given_up if each.name == name and each.key in history.settled]
        if not known:
            names = ", ".join(sorted({settled for settled, _ in history.settled})) or "none"
            raise SettingsError(f"{name!r} was not given up, so there is nothing to requeue; given up: {names}")
        if history.open is not None:
            raise StorageError(f"plan {history.open.plan} is open: requeue {name!r} when it has ended")
        last = known[-1]
        reopened = Settlement(last.name, last.digest, last.step, "requeued", f"by {by}; it was {last.verdict}")
        plan = Plan(
            plan=history.through + 1,
            run=run,
            nonce=secrets.token_hex(16),
            checkpoint=None,
            attempt=0,
            members=None,
            settles=(reopened,),
            task=None,
            proposer=by,
            proposed_at=timestamp(clock.wall()),
        )
        if journal.propose(plan):
            return reopened
    raise StorageError(f"other daemons were faster {_TRIES} times in a row: try again")
