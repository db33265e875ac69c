"""Lets checkpoints that were given up be tried again: the record of it is written into the journal, like any plan.

Plan N+1 may only follow outcome N, so an open plan is waited for.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.agreement.journal import Journal
from sidecar.agreement.run import read_run
from sidecar.agreement.storage import Storage
from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.found import Look
from sidecar.clock import Clock, timestamp
from sidecar.commands.standing import Standing
from sidecar.errors import SettingsError, StorageError, VanishedError
from sidecar.history import History, Settled
from sidecar.records import Key, Plan, Settlement

# A daemon with a queue proposes a few milliseconds after an outcome: who comes later waits for the next one.
_SHORTEST_PAUSE_SECONDS: Final = 0.005
_DIGEST_LETTERS: Final = 12

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be reopened: these names, or with `all_failed` whatever failed for good."""

    names: Sequence[str]
    all_failed: bool = False


@dataclass(slots=True)
class _Reader:
    """The journal as far as it was read."""

    journal: Journal
    history: History = field(default_factory=History)

    def read_on(self) -> Plan | None:
        """Read to the end; the open plan. Raises `StorageLostError` where records before the end are missing."""
        for record in self.journal.read_to_end():
            self.history.apply(record)
        return self.history.open


def requeue(
    storage: Storage,
    catalog: Catalog,
    wanted: Wanted,
    *,
    by: str,
    clock: Clock,
    wait_seconds: float,
    pause: Callable[[float], None],
    tell: Tell,
) -> tuple[Settlement, ...]:
    """Reopen checkpoints in one record of the journal; returns what it says of them.

    `tell` gets what a person should know meanwhile, one sentence each.

    Raises:
        SettingsError: there is nothing to reopen under one of the names; nothing is written then.
        VanishedError: the files of one are gone; nothing is written then.
        StorageError: storage does not answer, or the open plan did not end in `wait_seconds`.
    """
    run = read_run(storage)
    if run is None:
        raise SettingsError("there is no run here yet: look with `sidecar status`, or name another --checkpoint-dir")
    reader, look, until = _Reader(Journal(storage, run)), catalog.look(), clock.now() + wait_seconds
    told = set[str]()

    def tell_once(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            tell(sentence)

    reader.read_on()
    _choose(reader.history, wanted, look, tell_once)  # a mistake is told now, not after the wait
    while True:
        _wait_for_end(reader, clock, until, pause, tell_once)
        chosen = _choose(reader.history, wanted, look, tell_once)
        settles = tuple(
            Settlement(each.name, each.digest, each.step, "requeued", f"by {by}; it was {each.verdict}")
            for each in chosen
        )
        if not settles or reader.journal.propose(_plan(reader.history, run, settles, by, clock)):
            return settles
        if clock.now() >= until:
            raise StorageError("another daemon wrote the journal at this very moment: try again")


def _wait_for_end(reader: _Reader, clock: Clock, until: float, pause: Callable[[float], None], tell: Tell) -> None:
    """Read on until no plan is open; raises `StorageError` if one still is when the time is over."""
    asked_at = clock.now()
    while (plan := reader.read_on()) is not None:
        now = clock.now()
        is_open = f"plan {plan.plan} ({plan.checkpoint.name if plan.checkpoint else 'no checkpoint'}) is open"
        if now >= until:
            raise StorageError(f"{is_open}, and a requeue can only follow its end: try again then")
        tell(f"{is_open}: waiting for its end (at most --wait-seconds)")
        pause(max(_SHORTEST_PAUSE_SECONDS, now - asked_at))  # slow storage is left alone half of the time
        asked_at = clock.now()


def what_next(found: Standing) -> str:
    """What becomes of a requeued checkpoint, as a sentence without its subject."""
    plan = found.history.open
    if found.proposer is not None:
        when = f" after plan {plan.plan}" if plan is not None and plan.checkpoint is not None else ""
        return f"{found.proposer} will take it up{when}"
    there = [pulse.heartbeat for pulse in found.members if pulse.fresh(found.lease)]
    workers = [f"{each.node} ({each.state})" for each in there if each.role == "worker"]
    if workers:
        return f"it will be evaluated once a worker is ready: {', '.join(workers)}"
    if there:
        return "only the chief's daemon beats: it will be evaluated when a worker's runs"
    return "no daemon beats: it will be evaluated when one runs"


def _choose(history: History, wanted: Wanted, look: Look, tell: Tell) -> list[Settlement]:
    """What is to be reopened, each once."""
    chosen = {}
    if wanted.all_failed:
        failed = [each for each in _given_up(history) if each.verdict == "failed"]
        for each in failed:
            if gone := _gone(each, look):
                tell(f"{gone}, so it stays given up")
            else:
                chosen[each.key] = each
        if not failed:
            tell("no checkpoint failed for good: nothing to requeue")
    for name in wanted.names:
        each = _newest(name, history, look, tell)
        chosen[each.key] = each
    return list(chosen.values())


def _newest(name: str, history: History, look: Look, tell: Tell) -> Settlement:
    """The settlement to reopen under a name: the newest content whose files are there."""
    known = [each for each in _given_up(history) if each.name == name]
    if not known:
        raise SettingsError(_nothing_to_requeue(name, history, look))
    there = [each for each in known if not _gone(each, look)]
    if not there:
        raise VanishedError(f"{_gone(known[0], look)}, so it cannot be evaluated again; save it again instead")
    if len(known) > 1:
        others = ", ".join(each.digest[:_DIGEST_LETTERS] for each in known if each is not there[0])
        digest = there[0].digest[:_DIGEST_LETTERS]
        tell(
            f"{name} was given up with {len(known)} contents: {digest} is taken, the newest that is there, not {others}"
        )
    return there[0]


def _given_up(history: History) -> list[Settlement]:
    """What could be reopened, the newest first, each once."""
    found: dict[Key, Settlement] = {}
    for entry in reversed(history.entries):
        if isinstance(entry, Settled) and entry.settlement.key in history.settled:
            found.setdefault(entry.settlement.key, entry.settlement)
    return [each for key, each in found.items() if key not in history.succeeded]


def _nothing_to_requeue(name: str, history: History, look: Look) -> str:
    given_up = ", ".join(sorted({each.name for each in _given_up(history)})) or "none"
    if any(key[0] == name for key in history.succeeded):
        why = "was evaluated"
    elif any(each.checkpoint.name == name for each in look.found):
        why = "is waiting already"
    else:
        why = "was not given up"
    return f"{name!r} {why}, so there is nothing to requeue; given up: {given_up}"


def _gone(settlement: Settlement, look: Look) -> str | None:
    """Why a checkpoint cannot be evaluated again, if its files are neither in the directory nor pinned."""
    alike = [each.checkpoint for each in look.found if each.checkpoint.name == settlement.name]
    broken = {name for name, _ in look.waiting} | {each.name for each in look.corrupt}
    if settlement.name in broken or settlement.key in {each.key for each in alike}:
        return None  # what is broken has no digest that could be compared
    if settlement.verdict == "corrupt" and alike:
        return None  # likewise
    name = f"{settlement.name} (digest {settlement.digest[:_DIGEST_LETTERS]})"
    if alike:
        return f"{name} is gone: what has its name now is another checkpoint, which is evaluated without a requeue"
    if look.missing:
        return f"{name} is gone with the checkpoint directory, and it is not pinned"
    return f"{name} is gone: its files are neither in the checkpoint directory nor pinned"


def _plan(history: History, run: str, settles: tuple[Settlement, ...], by: str, clock: Clock) -> Plan:
    return Plan(
        plan=history.through + 1,
        run=run,
        nonce=secrets.token_hex(16),
        checkpoint=None,
        attempt=0,
        members=None,
        settles=settles,
        task=None,
        proposer=by,
        proposed_at=timestamp(clock.wall()),
        line_open=history.line_open,
    )
