"""What to do next. PURE: a view of the world and the time go in, one action comes out; no I/O, no clock, no state.

Any worker-role daemon may close a plan that cannot succeed; one of them, the proposer, opens plans. Two proposers are
harmless, since creating the plan's number in shared storage decides; so nothing here needs to be sure of the others.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sidecar.history import Attempts, History, Key
from sidecar.records import KINDS, Checkpoint, Heartbeat, Member, Plan, Settlement


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decisions depend on; durations in seconds."""

    queue: Literal["every", "latest"] = "every"
    min_workers: int = 1
    max_attempts: int = 3
    max_losses: int = 10
    backoff_first: float = 1.0
    backoff_last: float = 300.0
    settle: float = 3.0
    join: float = 120.0
    patience: float = 10.0
    plan_cap: float = 86400.0
    stop_after_step: int | None = None
    stop_idle: float | None = None
    wait: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """The world as one daemon sees it. Times are on its own clock; `members` are fresh workers in natural order."""

    node: str
    incarnation: str
    task: str | None
    history: History
    members: Sequence[Heartbeat] = ()
    found: Sequence[Checkpoint] = ()  # complete, in order of discovery
    given_up: Sequence[Settlement] = ()  # corrupt or vanished, as the catalog saw it
    unwanted: frozenset[Key] = frozenset()  # there before the start, with start = new
    lost: dict[str, str] = field(default_factory=dict)  # nodes of the open plan that will not finish it, and why
    chiefs: frozenset[str] = frozenset()  # nodes whose heartbeat says chief
    ready_to_propose: bool = False
    draining: bool = False
    looked: bool = False  # the first look at journal and directory is done
    incomplete: bool = False  # something in the directory is not a complete checkpoint yet
    opened_at: float = 0.0  # when the open plan was first seen
    undone_since: float | None = None  # since when there was work and no plan
    gathering_since: float = 0.0  # when the first worker that could be listed appeared
    changed_at: float = 0.0  # when the set of workers that could be listed last changed
    failed_at: dict[Key, float] = field(default_factory=dict)  # when the last failure of a checkpoint was read
    active_at: float = 0.0  # when anything last happened


@dataclass(frozen=True, slots=True)
class Propose:
    """Open the next plan: evaluate a checkpoint with these members, or only settle what needs no evaluation."""

    checkpoint: Checkpoint | None
    attempt: int
    members: tuple[Member, ...] | None
    settles: tuple[Settlement, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """Close the open plan as failed."""

    kind: str
    message: str
    node: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something happens, or until then."""

    until: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over."""

    why: str
    failed: int  # checkpoints that failed for good


Action = Propose | Fail | Wait | Stop


def decide(view: View, rules: Rules, now: float) -> Action:
    """The one action that this daemon should take now."""
    if not view.looked:
        return Wait(why="the journal is not read yet")
    if view.history.open is not None:
        return _judge(view.history.open, view, rules, now)
    settles = tuple(_settlements(view, rules))
    queue = _queue(view, settles)
    if not queue and not settles:
        return _idle(view, rules, now)
    action = _plan(view, rules, now, queue, settles)
    return action if isinstance(action, Wait) else _in_turn(view, rules, now, action)


def pending(history: History, found: Sequence[Checkpoint], task: str | None) -> int:
    """How many complete checkpoints still need an evaluation."""
    return sum(not history.is_settled(each.key, task) for each in found)


def proposer(members: Sequence[Heartbeat]) -> str | None:
    """The node whose turn it is to propose, and to publish: the first fresh worker."""
    return members[0].node if members else None


def _judge(plan: Plan, view: View, rules: Rules, now: float) -> Action:
    """Whether the open plan can still succeed. What this node's own workers do is told by themselves."""
    members = plan.members or ()
    for member in members:
        if member.node in view.chiefs:
            return Fail("chief_listed", f"{member.node} is the chief: it never evaluates", member.node, member.rank)
        if member.node == view.node and not member.worker.startswith(f"{view.node}.{view.incarnation}."):
            return Fail("restarted", f"{member.node} was restarted while it evaluated", member.node, member.rank)
    for member in members:
        if why := view.lost.get(member.node):
            return Fail("member_lost", why, member.node, member.rank)
    if now >= view.opened_at + rules.plan_cap:
        return Fail("deadline", f"the plan was open for {rules.plan_cap:.0f} s, the most allowed (plan_cap_seconds)")
    return Wait(view.opened_at + rules.plan_cap, "a plan is open")


def _settlements(view: View, rules: Rules) -> Iterator[Settlement]:
    """What is settled without an evaluation: each once, since what the journal holds is not told again."""
    history, task = view.history, view.task
    for given_up in view.given_up:
        if not history.is_settled(given_up.key, task):
            yield given_up
    unsettled = [each for each in view.found if not history.is_settled(each.key, task)]
    told = {given_up.key for given_up in view.given_up}
    unsettled = [each for each in unsettled if each.key not in told]
    for each in unsettled:
        attempts = history.attempts.get(each.key)
        if attempts is not None and attempts.task == task and (end := _exhausted(attempts, rules)) is not None:
            verdict, why = end
            yield Settlement(each.name, each.digest, each.step, verdict, why, task)
            told.add(each.key)
    for each in unsettled:
        if each.key in view.unwanted and each.key not in told:
            yield Settlement(each.name, each.digest, each.step, "skipped", "it was there before the start (start=new)")
            told.add(each.key)
    if rules.queue == "latest":
        waiting = [each for each in unsettled if each.key not in told]
        for each in waiting[:-1]:
            why = f"superseded by {waiting[-1].name} (queue=latest)"
            yield Settlement(each.name, each.digest, each.step, "skipped", why)


def _exhausted(attempts: Attempts, rules: Rules) -> tuple[Literal["failed", "vanished", "corrupt"], str] | None:
    """Whether a checkpoint failed for good, by the class of its failures; and how to say so."""
    last = attempts.failures[-1]
    reason = f"{last.kind}: {last.message}"
    if attempts.blamed("vanished"):
        return "vanished", reason
    witnesses = {outcome.node for outcome in attempts.failures if KINDS.get(outcome.kind or "") == "corrupt"}
    if len(witnesses) > 1 or attempts.blamed("corrupt") >= rules.max_attempts:
        return "corrupt", reason
    if attempts.blamed("checkpoint") >= rules.max_attempts or attempts.blamed("group") >= rules.max_losses:
        return "failed", f"{reason} ({len(attempts.failures)} attempts)"
    return None


def _queue(view: View, settles: Sequence[Settlement]) -> list[Checkpoint]:
    """Pinned checkpoints that need an evaluation, in order."""
    settled = {settlement.key for settlement in settles}
    return [
        each
        for each in view.found
        if each.pin is not None and each.key not in settled and not view.history.is_settled(each.key, view.task)
    ]


def _plan(view: View, rules: Rules, now: float, queue: list[Checkpoint], settles: tuple[Settlement, ...]) -> Action:
    """The next plan, or what it waits for."""
    only_settle = Propose(None, 0, None, settles) if settles else None
    if view.draining:
        return Wait(why="draining")
    if not queue:
        assert only_settle is not None
        return only_settle
    ready = {each.key: _ready_at(each, view, rules) for each in queue}
    checkpoint = next((each for each in queue if ready[each.key] <= now), None)
    if checkpoint is None:
        return only_settle or Wait(min(ready.values()), "waiting before the next attempt")
    members = _members(view, rules, now, checkpoint)
    if isinstance(members, Wait):
        return only_settle or members
    return Propose(checkpoint, _attempts(checkpoint, view) + 1, members, settles)


def _in_turn(view: View, rules: Rules, now: float, action: Action) -> Action:
    """Leave it to the nodes before this one for a while: they see the same."""
    if not view.ready_to_propose:
        return Wait(why="getting to know the other nodes")
    nodes = [heartbeat.node for heartbeat in view.members]
    if view.node not in nodes:
        return Wait(why="this node is not counted as a worker")
    mine = (view.undone_since if view.undone_since is not None else now) + nodes.index(view.node) * rules.patience
    return action if now >= mine else Wait(mine, f"{nodes[0]} proposes first")


def _ready_at(checkpoint: Checkpoint, view: View, rules: Rules) -> float:
    """When a checkpoint may be tried again: at once at first, then ever later."""
    failures = _attempts(checkpoint, view)
    if not failures:
        return 0.0
    pause = min(rules.backoff_last, rules.backoff_first * 2.0 ** min(failures - 1, 64))
    return view.failed_at.get(checkpoint.key, 0.0) + pause


def _attempts(checkpoint: Checkpoint, view: View) -> int:
    attempts = view.history.attempts.get(checkpoint.key)
    return len(attempts.failures) if attempts is not None and attempts.task == view.task else 0


def _members(view: View, rules: Rules, now: float, checkpoint: Checkpoint) -> tuple[Member, ...] | Wait:
    """The group: the one that is warm if nobody could be added to it, else of those that stand by."""
    nodes = _largest_alike(view)
    nodes = _without_losers(nodes, view, rules, checkpoint)
    warm = _warm(nodes, view.history)
    fresh = _standing_by(nodes, view.history)
    if warm and len(warm) >= max(rules.min_workers, len(fresh)):
        return warm
    if len(fresh) < rules.min_workers:
        return Wait(why=f"{len(fresh)} workers stand by, min_workers = {rules.min_workers}")
    slots = sum(len(heartbeat.slots) for heartbeat in nodes)
    if len(fresh) < slots and now < view.gathering_since + rules.join:
        return Wait(view.gathering_since + rules.join, "more workers are about to stand by")
    if now < view.changed_at + rules.settle:
        return Wait(view.changed_at + rules.settle, "others may still come")
    return fresh


def _largest_alike(view: View) -> list[Heartbeat]:
    """The largest set of ready nodes with the same version and task; ours among equals."""
    ready = [each for each in view.members if each.state == "ready" and each.task is not None]
    sizes = Counter((each.version, each.task) for each in ready)
    own = next(((each.version, each.task) for each in ready if each.node == view.node), None)
    if not sizes:
        return []
    best = max(sizes, key=lambda alike: (sizes[alike], alike == own))
    return [each for each in ready if (each.version, each.task) == best]


def _without_losers(nodes: list[Heartbeat], view: View, rules: Rules, checkpoint: Checkpoint) -> list[Heartbeat]:
    """Without the nodes that lost this checkpoint's plans, while enough others are there."""
    attempts = view.history.attempts.get(checkpoint.key)
    losers = (
        {outcome.node for outcome in attempts.failures if KINDS.get(outcome.kind or "") == "group"} if attempts else ()
    )
    others = [each for each in nodes if each.node not in losers]
    workers = sum(bool(slot.worker or slot.standby) for each in others for slot in each.slots)
    return others if workers >= rules.min_workers else nodes


def _warm(nodes: Sequence[Heartbeat], history: History) -> tuple[Member, ...]:
    """The members of the group that all active workers of these nodes form; empty if there is no such group."""
    groups = {slot.group for each in nodes for slot in each.slots if slot.worker is not None}
    if len(groups) != 1 or None in groups:
        return ()
    members = _enumerate(
        (each.node, slot.worker, slot.address) for each in nodes for slot in each.slots if slot.worker is not None
    )
    newest = history.newest
    whole = newest is not None and newest.plan.members == members  # nobody of it is missing
    return members if whole and not any(member.worker in history.spent_workers for member in members) else ()


def _standing_by(nodes: Sequence[Heartbeat], history: History) -> tuple[Member, ...]:
    return _enumerate(
        (each.node, slot.standby, slot.standby_address)
        for each in nodes
        for slot in each.slots
        if slot.standby is not None and slot.standby not in history.spent_workers
    )


def _enumerate(workers: "Iterator[tuple[str, str | None, str | None]]") -> tuple[Member, ...]:
    return tuple(
        Member(rank, node, worker, address)
        for rank, (node, worker, address) in enumerate(workers)
        if worker is not None and address is not None
    )


def _idle(view: View, rules: Rules, now: float) -> Action:
    """Nothing is left to do: whether that is the end."""
    failed = sum(settlement.verdict in ("failed", "corrupt") for settlement in view.history.settled.values())
    if not rules.wait:
        return Stop("everything there is evaluated (--no-wait)", failed)
    if rules.stop_after_step is not None and _last_step(view) >= rules.stop_after_step:
        return Stop(f"step {rules.stop_after_step} is evaluated (stop_after_step)", failed)
    if rules.stop_idle is not None:
        end = view.active_at + rules.stop_idle
        return (
            Stop(f"nothing happened for {rules.stop_idle:g} s (stop_idle_seconds)", failed) if now >= end else Wait(end)
        )
    return Wait(why="nothing to do")


def _last_step(view: View) -> int:
    """The highest step that is settled, by an evaluation or otherwise; -1 if none is."""
    evaluated = (checkpoint.step for checkpoint, _ in view.history.evaluated())
    settled = (settlement.step for settlement in view.history.settled.values())
    return max((step for step in (*evaluated, *settled) if step is not None), default=-1)
