"""What to do next. PURE: a view of the world and the time go in, one action comes out; no I/O, no clock, no state.

Any worker-role daemon may close a plan that cannot succeed; one of them, the proposer, opens plans. Two proposers are
harmless, since creating the plan's number in shared storage decides; so nothing here needs to be sure of the others.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from sidecar.history import History, blamed
from sidecar.records import KINDS, Checkpoint, Heartbeat, Key, Member, Outcome, Plan, Settlement, Verdict


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
    visibility: float = 60.0
    join: float = 120.0
    patience: float = 10.0
    plan_cap: float = 86400.0
    collective: float = 6.0
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
    given_up: Sequence[Settlement] = ()  # corrupt, vanished or too large to be pinned, as this node saw it
    unwanted: AbstractSet[Key] = frozenset()  # there before the start, with start = new
    lost: dict[str, str] = field(default_factory=dict)  # nodes of the open plan that will not finish it, and why
    chiefs: frozenset[str] = frozenset()  # nodes whose heartbeat says chief
    ready_to_propose: bool = False
    draining: bool = False
    looked: bool = False  # the first look at journal and directory is done
    incomplete_since: float | None = None  # since when the same things in the directory are no complete checkpoints
    opened_at: float = 0.0  # when the open plan was first seen
    stuck_since: float | None = None  # since when every rank of the open plan waits for the others
    undone_since: float | None = None  # since when there was work and no plan
    gathering_since: float = 0.0  # when the first worker that could be listed appeared
    changed_at: float = 0.0  # when the set of workers that could be listed last grew
    failed_at: dict[Key, float] = field(default_factory=dict)  # when the last failure of a checkpoint was read
    active_at: float = 0.0  # when anything last happened


@dataclass(frozen=True, slots=True)
class Propose:
    """Open the next plan: evaluate a checkpoint with these members, or only settle what needs no evaluation."""

    checkpoint: Checkpoint | None
    attempt: int
    members: tuple[Member, ...] | None
    settles: tuple[Settlement, ...]
    evaluated: int = 0  # as in the plan


@dataclass(frozen=True, slots=True)
class Fail:
    """Close the open plan as failed."""

    kind: str
    message: str
    node: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something happens, or until then; `listen` if another node is about to write a record."""

    until: float | None = None
    why: str = ""
    listen: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over."""

    why: str
    failed: int  # checkpoints that failed for good


Action = Propose | Fail | Wait | Stop


_OF_ONE_NODE: Final = frozenset({"group", "corrupt", "vanished"})
"""Classes of failures after which others may do better without the node that failed."""


def decide(view: View, rules: Rules, now: float) -> Action:
    """The one action that this daemon should take now."""
    if not view.looked:
        return Wait(why="the journal is not read yet")
    if view.history.open is not None:
        return _judge(view.history.open, view, rules, now)
    settles = tuple(_settlements(view, rules))
    settled = {settlement.key for settlement in settles}
    queue = [each for each in _unsettled(view) if each.key not in settled]
    if not queue and not settles:
        return _idle(view, rules, now)
    action = _plan(view, rules, now, queue, settles)
    return _in_turn(view, rules, now, action) if isinstance(action, Propose) else action


def pending(history: History, found: Sequence[Checkpoint], task: str | None) -> list[Checkpoint]:
    """The complete checkpoints that still need an evaluation."""
    return [each for each in found if not history.is_settled(each.key, task)]


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
    if view.stuck_since is not None and now >= view.stuck_since + rules.collective:
        # Nobody can tell whose link is broken. The next attempt goes without one of them: so some group will succeed.
        last = members[-1]
        waited = f"every rank waited for the others for {rules.collective:g} s (collective_timeout_seconds)"
        return Fail("stalled", f"{waited}: they do not reach each other", last.node, last.rank)
    if now >= view.opened_at + rules.plan_cap:
        return Fail("deadline", f"the plan was open for {rules.plan_cap:.0f} s, the most allowed (plan_cap_seconds)")
    return Wait(view.opened_at + rules.plan_cap, "a plan is open")


def _unsettled(view: View) -> list[Checkpoint]:
    """Complete checkpoints that the journal has not settled, in order of discovery."""
    return [each for each in view.found if not view.history.is_settled(each.key, view.task)]


def _settlements(view: View, rules: Rules) -> Iterator[Settlement]:
    """What is settled without an evaluation: each once, since what the journal holds is not told again."""
    told = set()
    for given_up in view.given_up:
        if not view.history.is_settled(given_up.key, view.task):
            told.add(given_up.key)
            yield given_up
    waiting = []
    for each in _unsettled(view):
        if each.key in told:
            continue
        if (end := _end(each, view, rules)) is None:
            waiting.append(each)
            continue
        verdict, reason = end
        yield Settlement(each.name, each.digest, each.step, verdict, reason, view.task if verdict == "failed" else None)
    for each, reason in _superseded(waiting, view, rules):
        yield Settlement(each.name, each.digest, each.step, "skipped", reason)


def _end(checkpoint: Checkpoint, view: View, rules: Rules) -> tuple[Verdict, str] | None:
    """How a checkpoint ends for good, as far as its own past says: the verdict and the reason."""
    failures = view.history.failed_under(checkpoint.key, view.task)
    if failures and (end := _exhausted(failures, rules)) is not None:
        return end
    if checkpoint.key in view.unwanted:
        return "skipped", "it was there before the start (start=new)"
    return None


def _superseded(waiting: list[Checkpoint], view: View, rules: Rules) -> Iterator[tuple[Checkpoint, str]]:
    """Which of those that wait give way to newer ones, and why."""
    if rules.queue == "latest":
        for each in waiting[:-1]:
            yield each, f"superseded by {waiting[-1].name} (queue=latest)"
        return
    held = [each for each in view.found if each.pin is not None]
    pinned = [each for each in waiting if each.pin is not None]
    # A settled pin that is still held makes room by itself, at the next look.
    if len(pinned) > 1 and len(pinned) < len(waiting) and len(held) == len(pinned):
        yield pinned[0], "pin_budget: newer ones would not be held against deletion otherwise (pin_max_bytes)"


def _exhausted(failures: Sequence[Outcome], rules: Rules) -> tuple[Verdict, str] | None:
    """Whether a checkpoint failed for good, by the class of its failures; and how to say so."""
    last = failures[-1]
    reason = f"{last.kind}: {last.message}"
    # This node finds it complete, and holds it, so one other node that does not may have a bad disk or a stale mount.
    for verdict in ("vanished", "corrupt"):
        witnesses = {outcome.node for outcome in failures if KINDS.get(outcome.kind or "") == verdict}
        if len(witnesses) > 1 or blamed(failures, verdict) >= rules.max_attempts:
            return verdict, reason
    if blamed(failures, "checkpoint") >= rules.max_attempts or blamed(failures, "group") >= rules.max_losses:
        return "failed", f"{reason} ({len(failures)} attempts)"
    return None


def _plan(
    view: View, rules: Rules, now: float, queue: list[Checkpoint], settles: tuple[Settlement, ...]
) -> Propose | Wait:
    """The next plan, or what it waits for."""
    if view.draining:
        return Wait(why="draining")
    action = _evaluate(view, rules, now, [each for each in queue if each.pin is not None])
    if isinstance(action, Propose):
        return replace(action, settles=settles)
    return Propose(None, 0, None, settles) if settles else action


def _evaluate(view: View, rules: Rules, now: float, queue: list[Checkpoint]) -> Propose | Wait:
    """The first of these that may be tried now, with a group; or what it waits for."""
    if not queue:
        return Wait(why="what is there is not pinned yet")
    ready = {each.key: _ready_at(each, view, rules) for each in queue}
    checkpoint = next((each for each in queue if ready[each.key] <= now), None)
    if checkpoint is None:
        return Wait(min(ready.values()), "waiting before the next attempt")
    members = _members(view, rules, now, checkpoint)
    if isinstance(members, Wait):
        return members
    return Propose(checkpoint, _attempts(checkpoint, view) + 1, members, (), view.history.successes_of(view.task))


def _in_turn(view: View, rules: Rules, now: float, action: Propose) -> Propose | Wait:
    """Leave it to the nodes before this one for a while: they see the same.

    Only nodes that could be listed together take turns: a plan carries the task of the node that proposes it.
    """
    if not view.ready_to_propose:
        return Wait(why="getting to know the other nodes")
    alike = _largest_alike(view)
    nodes = [heartbeat.node for heartbeat in alike]
    if view.node not in nodes or alike[0].task != view.task:  # its own heartbeat may still tell of another task
        return Wait(why=f"{view.node} is not counted, or has another version or task than most nodes")
    undone_since = now if view.undone_since is None else view.undone_since
    mine = undone_since + nodes.index(view.node) * rules.patience
    return action if now >= mine else Wait(mine, f"{nodes[0]} proposes first", listen=True)


def _ready_at(checkpoint: Checkpoint, view: View, rules: Rules) -> float:
    """When a checkpoint may be tried again: at once at first, then ever later."""
    if checkpoint.key not in view.history.failures:
        return 0.0
    failures = _attempts(checkpoint, view)  # 0: those of another task; nodes with two of them must not race either
    pause = min(rules.backoff_last, rules.backoff_first * 2.0 ** min(max(failures - 1, 0), 64))
    return view.failed_at.get(checkpoint.key, 0.0) + pause


def _attempts(checkpoint: Checkpoint, view: View) -> int:
    """How often it failed under this task."""
    return len(view.history.failed_under(checkpoint.key, view.task))


def _members(view: View, rules: Rules, now: float, checkpoint: Checkpoint) -> tuple[Member, ...] | Wait:
    """The group: the one that is warm if nobody could be added to it, else of those that stand by."""
    alike = _largest_alike(view)
    nodes = _without_losers(alike, view, rules, checkpoint)
    warm = _warm(nodes, view.history)
    fresh = _standing_by(nodes, view.history)
    if not warm and len(fresh) < rules.min_workers:  # without standbys the others are of use only with those that lost
        warm = _warm(alike, view.history)
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
    """Without the nodes that lost this checkpoint's plans or could not read it, while enough others are there."""
    failures = (each for outcomes in view.history.failures.get(checkpoint.key, {}).values() for each in outcomes)
    losers = {outcome.node for outcome in failures if KINDS.get(outcome.kind or "") in _OF_ONE_NODE}
    others = [each for each in nodes if each.node not in losers]
    workers = sum(bool(slot.worker or slot.standby) for each in others for slot in each.slots)
    return others if workers >= rules.min_workers else nodes


def _warm(nodes: Sequence[Heartbeat], history: History) -> tuple[Member, ...]:
    """The members of the group that all active workers of these nodes form; empty if there is no such group."""
    members = _enumerate((each.node, slot.worker, slot.address) for each in nodes for slot in each.slots)
    newest = history.newest
    # A group that never succeeded has failed, and the workers of any other were killed when this one was formed.
    whole = newest is not None and newest.plan.members == members
    return members if whole and not any(member.worker in history.spent_workers for member in members) else ()


def _standing_by(nodes: Sequence[Heartbeat], history: History) -> tuple[Member, ...]:
    """Workers that have never been in a group. A heartbeat may be late, so the journal is asked too."""
    newest = history.newest
    joined = {member.worker for member in (newest.plan.members or ())} if newest is not None else set[str]()
    return _enumerate(
        (each.node, slot.standby, slot.standby_address)
        for each in nodes
        for slot in each.slots
        if slot.standby not in joined and slot.standby not in history.spent_workers
    )


def _enumerate(workers: Iterable[tuple[str, str | None, str | None]]) -> tuple[Member, ...]:
    there = [(node, worker, address) for node, worker, address in workers if worker is not None and address is not None]
    return tuple(Member(rank, node, worker, address) for rank, (node, worker, address) in enumerate(there))


def _idle(view: View, rules: Rules, now: float) -> Stop | Wait:
    """Nothing is left to do: whether that is the end."""
    if not rules.wait:
        # Long enough for what is named and broken to be given up by the catalog first.
        end = now if view.incomplete_since is None else view.incomplete_since + rules.visibility + rules.settle
        if now < end:
            return Wait(end, "something there is not complete yet")
        return Stop("everything there is evaluated (--no-wait)", _failed(view))
    if rules.stop_after_step is not None and view.history.last_step >= rules.stop_after_step:
        return Stop(f"step {rules.stop_after_step} is evaluated (stop_after_step)", _failed(view))
    if rules.stop_idle is not None:
        end = view.active_at + rules.stop_idle
        why = f"nothing happened for {rules.stop_idle:g} s (stop_idle_seconds)"
        return Stop(why, _failed(view)) if now >= end else Wait(end, "nothing to do")
    return Wait(why="nothing to do")


def _failed(view: View) -> int:
    """Checkpoints that failed for good and have not succeeded, say under a corrected task."""
    history = view.history
    return sum(
        verdict in ("failed", "corrupt") and key not in history.succeeded
        for key, verdict in history.settled.items()
        if history.is_settled(key, view.task)
    )
