"""What to do next. PURE: a view of the world and the time go in, one action comes out; no I/O, no clock, no state.

Any worker-role daemon may close a plan that cannot succeed; one of them, the proposer, opens plans. Two proposers are
harmless, since creating the plan's number in shared storage decides; so nothing here needs to be sure of the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final, Literal

from sidecar.coordination.journal_state import BEFORE_START, Closed, JournalState, blame, blamed, losers
from sidecar.policy.eligibility import disputed, largest_alike, members_for, turns, who_reads
from sidecar.policy.selection import Selection
from sidecar.records import Checkpoint, Heartbeat, Key, Lasting, Member, Outcome, Plan, Settlement, Verdict

REOPENED: Final = "it vanished, and is there again"


@dataclass(frozen=True, slots=True)
class Rules:
    """Hold the settings that decisions depend on."""

    queue: Literal["every", "latest"] = "every"
    every_steps: int | None = None
    min_workers: int = 1
    max_attempts: int = 3
    max_losses: int = 10
    backoff_first_seconds: float = 1.0
    backoff_last_seconds: float = 300.0
    group_settle_seconds: float = 3.0
    quiet_seconds: float = 3.0
    corrupt_after_seconds: float = 60.0
    pin_wait_seconds: float = 60.0
    join_timeout_seconds: float = 120.0
    proposal_turn_seconds: float = 10.0
    plan_cap_seconds: float = 86400.0
    collective_timeout_seconds: float = 6.0
    most_settled: int = 2000  # by one plan: so that no record is too long, nor takes longer than a beat to read
    stop_after_step: int | None = None
    stop_idle_seconds: float | None = None
    wait: bool = True

    @property
    def selection(self) -> Selection:
        """Which checkpoints are evaluated."""
        return Selection(self.queue, self.every_steps)


@dataclass(frozen=True, slots=True)
class View:
    """The world as one daemon sees it. Times are on its own clock; `members` are fresh workers in natural order."""

    node: str
    incarnation: str
    task: str | None
    history: JournalState
    members: Sequence[Heartbeat] = ()
    unheard: bool = False  # whether some other worker may be there, though nothing can be heard of it now
    found: Sequence[Checkpoint] = ()  # complete, in order of discovery
    given_up: Sequence[Settlement] = ()  # corrupt, vanished or passed over and gone, as this node saw it
    returned: Sequence[Checkpoint] = ()  # complete, though the journal says that they vanished
    unreadable: AbstractSet[str] = frozenset()  # names, as `Checkpoint.folder`, that others must look after
    unwanted: AbstractSet[Key] = frozenset()  # there before the start, with start = new
    draws_line: bool = False  # with start = new, while the journal does not say yet what was there before the start
    no_room: frozenset[Key] = frozenset()  # of those found: this node may not pin them, for want of room
    failed: AbstractSet[str] = frozenset()  # names, as `Checkpoint.folder`, that this node could not pin
    tasks: frozenset[str | None] = frozenset()  # of the nodes that are there
    done: bool = False  # the trainer's marker says that it saved its last checkpoint
    last_step: int = -1  # that training has come to
    lost: dict[str, str] = field(default_factory=dict)  # nodes of the open plan that will not finish it, and why
    chiefs: frozenset[str] = frozenset()  # nodes whose heartbeat says chief
    ready_to_propose: bool = False
    draining: bool = False
    looked: bool = False  # the first look at journal and directory is done
    looked_at: float = float("inf")  # when the newest look at the directory was asked for
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
    line_open: bool = False  # likewise


@dataclass(frozen=True, slots=True)
class Fail:
    """Close the open plan as failed."""

    kind: str
    message: str
    node: str | None = None
    rank: int | None = None
    odd: tuple[str, ...] = ()  # as in the outcome
    lasting: Lasting | None = None  # likewise


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


_INTERRUPTIONS: Final = frozenset({"restarted", "drained", "chief_listed"})
"""Failures that say nothing of the checkpoint, which keeps its place in the queue."""


def decide(view: View, rules: Rules, now: float) -> Action:
    """The one action that this daemon should take now."""
    if not view.looked:
        return Wait(why="the journal is not read yet")
    if view.history.open is not None:
        return _judge(view.history.open, view, rules, now)
    ending = _ending(view, rules, now)
    settles, queue = _sorted_out(view, rules, over=isinstance(ending, str))
    if not queue and not settles and not view.draws_line:
        return _stop(view, ending) if isinstance(ending, str) else ending
    action = _plan(view, rules, now, queue, settles)
    return _in_turn(view, rules, now, action) if isinstance(action, Propose) else action


def pending(history: JournalState, found: Sequence[Checkpoint], task: str | None) -> list[Checkpoint]:
    """The complete checkpoints that still need an evaluation."""
    return [each for each in found if not history.is_settled(each.key, task)]


def proposer(members: Sequence[Heartbeat]) -> str | None:
    """The node whose turn it is to propose, and to publish: the first fresh worker."""
    return members[0].node if members else None


def _judge(plan: Plan, view: View, rules: Rules, now: float) -> Action:
    """Whether the open plan can still succeed. What this node's own workers do is told by themselves."""
    members = plan.members or ()
    if (unfit := _unfit(members, view)) is not None:
        return unfit
    if view.stuck_since is not None and now >= view.stuck_since + rules.collective_timeout_seconds:
        # Nobody can tell whose link is broken. The next attempt goes without one of them: so some group will succeed.
        last = members[-1]
        waited = (
            f"every rank waited for the others for {rules.collective_timeout_seconds:g} s (collective_timeout_seconds)"
        )
        return Fail("stalled", f"{waited}: they do not reach each other", last.node, last.rank)
    if now >= view.opened_at + rules.plan_cap_seconds:
        return Fail(
            "deadline", f"the plan was open for {rules.plan_cap_seconds:.0f} s, the most allowed (plan_cap_seconds)"
        )
    return Wait(view.opened_at + rules.plan_cap_seconds, "a plan is open")


def _unfit(members: Sequence[Member], view: View) -> Fail | None:
    """Why these will not finish it together."""
    for member in members:
        if member.node in view.chiefs:
            return Fail("chief_listed", f"{member.node} is the chief: it never evaluates", member.node, member.rank)
        if member.node == view.node and not member.worker.startswith(f"{view.node}.{view.incarnation}."):
            return Fail("restarted", f"{member.node} was restarted while it evaluated", member.node, member.rank)
    for member in members:
        if why := view.lost.get(member.node):
            return Fail("member_lost", why, member.node, member.rank)
    return None if members else Fail("join", "the plan lists no worker at all")


def _sorted_out(view: View, rules: Rules, *, over: bool) -> tuple[tuple[Settlement, ...], list[Checkpoint]]:
    """What is settled without an evaluation, each once, and what is to be evaluated, in order of discovery."""
    given_up = [each for each in view.given_up if not view.history.is_settled(each.key, view.task)]
    told = {each.key for each in given_up}
    findings = [_own_finding(each, view, rules) for each in given_up]
    settles = [each for each in findings if each is not None]
    settles += _reopened(view, rules)
    waiting = []
    for each in pending(view.history, view.found, view.task):
        if each.key in told or each.folder in view.unreadable:
            continue
        if (end := _end(each, view, rules)) is None:
            waiting.append(each)
        else:
            verdict, reason = end
            task = view.task if verdict == "failed" else None
            settles.append(Settlement(each.name, each.digest, each.step, verdict, reason, task))
    choice = rules.selection.choose(waiting, view.history, over=over)
    skipped = [(each, choice.passed[each.key]) for each in choice.settled]
    skipped += _crowded_out(view, choice.evaluate)
    settles += [Settlement(each.name, each.digest, each.step, "skipped", reason) for each, reason in skipped]
    gone = {each.key for each in settles}
    return tuple(settles), [each for each in choice.evaluate if each.key not in gone]


def _own_finding(given_up: Settlement, view: View, rules: Rules) -> Settlement | None:
    """How it ends what this node gave up: as it found, unless another one finds it whole; then as attempts proved."""
    if not disputed(given_up, view.node, view.members, unheard=view.unheard):
        return given_up
    end = _end(Checkpoint(given_up.name, given_up.digest, given_up.step, ""), view, rules)
    if end is None:
        return None
    verdict, reason = end
    return replace(given_up, verdict=verdict, reason=reason, task=view.task if verdict == "failed" else None)


def _end(checkpoint: Checkpoint, view: View, rules: Rules) -> tuple[Verdict, str] | None:
    """How a checkpoint ends for good, as far as its own past says: the verdict and the reason."""
    failures = view.history.failed_under(checkpoint.key, view.task)
    if failures and (end := _exhausted(failures, view, rules)) is not None:
        return end
    if (reason := _unusable(view)) is not None:
        return "failed", reason
    if checkpoint.key in view.unwanted:
        return "skipped", BEFORE_START
    return None


def _unusable(view: View) -> str | None:
    """Why every checkpoint would fail under this task, if daemons that are still there proved it.

    A daemon that was started again tries anew: data or packages may have been corrected meanwhile.
    """
    there = {(view.task, each.node, each.incarnation) for each in view.members}
    found = [outcome for witness, outcome in view.history.unusable.items() if witness in there]
    if not _is_proven(found, view):
        return None
    first_line = (found[-1].message or "").partition("\n")[0]
    return (
        f"{found[-1].kind}: the task fails whatever it evaluates, as plan {found[-1].plan} did: correct it and restart "
        f"the daemons ({first_line})"
    )


def _is_proven(lasting: Sequence[Outcome], view: View) -> bool:
    """Whether failures that follow from code and shapes are no trouble of one node: two had them, or no other is there.

    A node of other versions, or one that is only about to begin, might do better, so it counts as there.
    """
    is_alone = not view.unheard and all(each.node == view.node for each in view.members)
    return len({each.node for each in lasting}) > (0 if is_alone else 1)


def _reopened(view: View, rules: Rules) -> Iterator[Settlement]:
    """Settlements that reopen checkpoints which vanished and are there again, if they would be evaluated."""
    settled, unreadable = view.history.settled, view.unreadable
    there = [each for each in view.returned if settled.get(each.key) == "vanished" and each.folder not in unreadable]
    for each in rules.selection.choose(there, view.history).evaluate:
        yield Settlement(each.name, each.digest, each.step, "requeued", REOPENED)


def _crowded_out(view: View, queue: Sequence[Checkpoint]) -> Iterator[tuple[Checkpoint, str]]:
    """The one that gives way, and why, if another found no room to be held: the oldest, never the last of the queue."""
    held = [each for each in view.found if each.pin is not None]
    if not any(each.key in view.no_room for each in queue) or any(_is_over(each, view) for each in held):
        return  # what nobody needs any more makes room by itself, at the next look
    newer = "pin_budget: newer ones would not be held against deletion otherwise (pin_max_bytes, keep_free_bytes)"
    # Of a group that has another task, and is smaller, or it would have evaluated them: it may never have its turn.
    for each in held:
        if view.history.is_settled(each.key, view.task):
            yield each, f"{newer}; only nodes with another task still wanted it"
            return
    own = [each for each in queue if each.pin is not None]
    if len(own) > 1:
        yield own[0], newer


def _is_over(checkpoint: Checkpoint, view: View) -> bool:
    """Whether no node that is there needs it any more."""
    return all(view.history.is_settled(checkpoint.key, task) for task in {*view.tasks, view.task})


def _exhausted(failures: Sequence[Outcome], view: View, rules: Rules) -> tuple[Verdict, str] | None:
    """Whether a checkpoint failed for good, by the class of its failures; and how to say so.

    Some node finds it complete: one that does not see it may have a bad disk or a stale mount, and is left out. That
    a whole checkpoint has vanished is never concluded from it.
    """
    last = failures[-1]
    reason = f"{last.kind}: {last.message}"
    is_alone = not view.unheard and len(largest_alike(view.members, view.node)) <= 1
    broken = blamed(failures, "corrupt")
    witnesses = {outcome.node for outcome in failures if blame(outcome) == "corrupt"}
    if len(witnesses) > 1 or (is_alone and broken >= rules.max_attempts):
        return "corrupt", reason
    lasting = [each for each in failures if each.lasting is not None]
    lost = blamed(failures, "group") + blamed(failures, "vanished") + broken
    if _is_proven(lasting, view) or blamed(failures, "checkpoint") >= rules.max_attempts or lost >= rules.max_losses:
        nodes = ", ".join(dict.fromkeys(node for outcome in failures for node in losers(outcome)))
        return "failed", f"{reason} ({len(failures)} attempts{', failed on ' if nodes else ''}{nodes})"
    return None


def _plan(
    view: View, rules: Rules, now: float, queue: list[Checkpoint], settles: tuple[Settlement, ...]
) -> Propose | Wait:
    """The next plan, or what it waits for."""
    if view.draining:
        return Wait(why="draining")
    if len(settles) > rules.most_settled:
        return Propose(None, 0, None, settles[: rules.most_settled], line_open=view.draws_line)
    action = _evaluate_held(view, rules, now, queue)
    if isinstance(action, Propose):
        return replace(action, settles=settles)
    return Propose(None, 0, None, settles) if settles or view.draws_line else action


def _evaluate_held(view: View, rules: Rules, now: float, queue: list[Checkpoint]) -> Propose | Wait:
    """Evaluate what is held. With `every_steps` none overtakes one that may be held soon.

    The one that was evaluated last says which multiple was reached: an older one after it would look like training that
    was set back, after which those of the same multiple count again.
    """
    until = _undone_since(view) + rules.pin_wait_seconds
    if rules.every_steps is not None and now < until:
        queue = list(takewhile(lambda each: not _may_be_held_soon(each, view), queue))
        if not queue:
            return Wait(until, "the first that was found is not pinned yet")
    return _evaluate(view, rules, now, [each for each in queue if each.pin is not None])


def _may_be_held_soon(checkpoint: Checkpoint, view: View) -> bool:
    """Whether its pin may yet come, and it will say then which multiple was reached."""
    key, history = checkpoint.key, view.history
    counts = checkpoint.step is not None and key not in history.requeued and key not in history.failures
    return counts and checkpoint.pin is None and key not in view.no_room and checkpoint.folder not in view.failed


def _evaluate(view: View, rules: Rules, now: float, queue: list[Checkpoint]) -> Propose | Wait:
    """The first of these that may be tried now, those that have not failed first; or what it waits for."""
    if not queue:
        return Wait(why="what is there is not pinned yet")
    ready = {each.key: _ready_at(each, view, rules) for each in queue}
    if _last_attempt_failed(view.history):  # one that never did goes first; after a success it is the oldest's turn
        queue = sorted(queue, key=lambda each: _has_failed(each, view))
    checkpoint = next((each for each in queue if ready[each.key] <= now), None)
    if checkpoint is None:
        return Wait(min(ready.values()), "waiting before the next attempt")
    members = _members(view, rules, now, checkpoint)
    if isinstance(members, Wait):
        return members
    return Propose(checkpoint, _attempts(checkpoint, view) + 1, members, (), view.history.successes_of(view.task))


def _last_attempt_failed(history: JournalState) -> bool:
    """Whether the newest attempt at any checkpoint failed by itself: what fails again and again holds up no other."""
    newest = next((entry.outcome for entry in reversed(history.entries) if isinstance(entry, Closed)), None)
    return newest is not None and newest.status == "failed" and newest.kind not in _INTERRUPTIONS


def _has_failed(checkpoint: Checkpoint, view: View) -> bool:
    """Whether an attempt at it failed by itself."""
    past = view.history.failures.get(checkpoint.key, {})
    return any(outcome.kind not in _INTERRUPTIONS for outcomes in past.values() for outcome in outcomes)


def _in_turn(view: View, rules: Rules, now: float, action: Propose) -> Propose | Wait:
    """Leave it to the nodes before this one for a while: they see the same.

    Only nodes that could be listed together take turns: a plan carries the task of the node that proposes it.
    """
    if not view.ready_to_propose:
        return Wait(why="getting to know the other nodes")
    alike = turns(who_reads(view.members, view.node, action.checkpoint), view.history.through)
    nodes = [heartbeat.node for heartbeat in alike]
    if view.node not in nodes or alike[0].task != view.task:  # its own heartbeat may still tell of another task
        return Wait(why=f"{view.node} is not counted, or has another version, task or profile than most nodes")
    mine = _undone_since(view) + nodes.index(view.node) * rules.proposal_turn_seconds
    return action if now >= mine else Wait(mine, f"{nodes[0]} proposes first", listen=True)


def _undone_since(view: View) -> float:
    return view.active_at if view.undone_since is None else view.undone_since


def _ready_at(checkpoint: Checkpoint, view: View, rules: Rules) -> float:
    """When a checkpoint may be tried again: at once at first, then ever later."""
    if checkpoint.key not in view.history.failures:
        return 0.0
    failures = _attempts(checkpoint, view)  # 0: those of another task; nodes with two of them must not race either
    pause = min(rules.backoff_last_seconds, rules.backoff_first_seconds * 2.0 ** min(max(failures - 1, 0), 64))
    return view.failed_at.get(checkpoint.key, 0.0) + pause


def _attempts(checkpoint: Checkpoint, view: View) -> int:
    """How often it failed under this task."""
    return len(view.history.failed_under(checkpoint.key, view.task))


def _members(view: View, rules: Rules, now: float, checkpoint: Checkpoint) -> tuple[Member, ...] | Wait:
    """The group: the one that is warm if nobody could be added to it, else of those that stand by."""
    alike = who_reads(view.members, view.node, checkpoint)
    nodes = members_for(alike, view.history, rules.min_workers, checkpoint, view.task)
    warm = _warm(nodes, view.history)
    fresh = _standing_by(nodes, view.history)
    if not warm and len(fresh) < rules.min_workers:  # without standbys the others are of use only with those that lost
        warm = _warm(alike, view.history)
    if warm and len(warm) >= max(rules.min_workers, len(fresh)):
        return warm
    if len(fresh) < rules.min_workers:
        return Wait(why=f"{len(fresh)} workers stand by, min_workers = {rules.min_workers}")
    slots = sum(len(heartbeat.slots) for heartbeat in nodes)
    if len(fresh) < slots and now < view.gathering_since + rules.join_timeout_seconds:
        return Wait(view.gathering_since + rules.join_timeout_seconds, "more workers are about to stand by")
    if now < view.changed_at + rules.group_settle_seconds:
        return Wait(view.changed_at + rules.group_settle_seconds, "others may still come")
    return fresh


def _warm(nodes: Sequence[Heartbeat], history: JournalState) -> tuple[Member, ...]:
    """The members of the group that all active workers of these nodes form; empty if there is no such group."""
    members = _enumerate((each.node, slot.worker, slot.address) for each in nodes for slot in each.slots)
    newest = history.newest
    # A group that never succeeded has failed, and the workers of any other were killed when this one was formed.
    whole = newest is not None and newest.plan.members == members
    return members if whole and not any(member.worker in history.spent_workers for member in members) else ()


def _standing_by(nodes: Sequence[Heartbeat], history: JournalState) -> tuple[Member, ...]:
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


def _ending(view: View, rules: Rules, now: float) -> str | Wait:
    """Why the run is over, or until when nothing says that it is. What is still being written is waited for."""
    last = rules.stop_after_step
    idle = None if rules.stop_idle_seconds is None else view.active_at + rules.stop_idle_seconds
    if not rules.wait:
        why = "everything there is evaluated (--once)"
    elif view.done:
        why = "the trainer's marker is there, and everything is evaluated (done_marker)"
    elif last is not None and view.last_step >= last:
        why = f"step {last} is evaluated (stop_after_step)"
    elif idle is not None and now >= idle:
        why = f"nothing happened for {rules.stop_idle_seconds:g} s (stop_idle_seconds)"
    else:
        return Wait(idle, "nothing to do")
    if view.incomplete_since is None:
        return why
    # Long enough for what is named and broken to be given up first, by a look that began after that time.
    given_up = view.incomplete_since + rules.corrupt_after_seconds
    end = given_up + rules.quiet_seconds
    if now >= end and view.looked_at >= given_up:
        return why
    return Wait(end if now < end else None, "something is not complete yet")


def _stop(view: View, why: str) -> Stop | Wait:
    """End the run, unless another node finds whole what this one gave up, or cannot read: that one evaluates it."""
    alike = largest_alike(view.members, view.node)
    others = {seen for each in alike if each.node != view.node for seen in each.sees}
    if readable := sorted(view.unreadable & others):
        return Wait(why=f"{readable[0]} cannot be read here, and another node finds it whole")
    for each in view.given_up:
        if not view.history.is_settled(each.key, view.task) and disputed(each, view.node, alike, unheard=view.unheard):
            return Wait(why=f"{each.name} was given up here, and another node finds it whole")
    unread = f"; {len(view.unreadable)} checkpoint(s) could not be read" if view.unreadable else ""
    return Stop(why + unread, _failed(view))


def _failed(view: View) -> int:
    """Checkpoints that failed for good and have not succeeded, say under a corrected task.

    What vanished or was skipped is no failure: training deleted it sooner than it could be held, or nobody wanted it.
    """
    history = view.history
    return sum(
        history.settled[key] == "corrupt" or bool({None, view.task} & history.failed_tasks.get(key, set()))
        for key in history.without_result
    )
