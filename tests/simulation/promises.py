"""Check what users were promised by a book of its own: which checkpoint lay where, since when, and who saw it.

The rules of the journal are `invariants`' business. Here the question is what became of checkpoints: that silence, and
every verdict, is earned. Nothing here is shared with the daemon but the records that it wrote.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

from sidecar.protocol.records import Outcome, Plan, Settlement
from sidecar.protocol.states import FAILURE_CLASSES
from simulation.disk import is_bad

PROMISES = {
    "vanished is gone": "vanished is said of what is on no disk, neither as files nor as a pin; by one node's own "
    "finding only after visibility_seconds of that",
    "skipped is passed over": "skipped is said by a node of the largest kind, whose settings pass it over, for a newer "
    "one, or one of the same multiple of steps, that is or was there",
    "corrupt is not readable": "corrupt is said by a node's own finding only if no other ready node reads it whole",
    "failed is earned": "failed is said after as many failures as the proposer allows, not counting those in which a "
    "minority of ranks was odd",
    "who fails it is left out": "failed is not said as one node lost a checkpoint again and again, while others that "
    "read it right, and lost it less often, were enough",
    "failures tell what was found": "no plan fails as vanished on a node that has found its pin broken for "
    "visibility_seconds",
    "whole checkpoints succeed": "what lay there whole for visibility and three sweeps of a healthy node that passes "
    "nothing over and is of the largest kind ends succeeded, or with a verdict that is earned",
    "one publisher": "after faults stopped exactly one daemon publishes, or one of each release whose heartbeats older "
    "ones cannot read, until it writes into the journal",
    "attempts are bounded": "a checkpoint fails no more often than the faults that could concern it allow",
    "losses are bounded": "a broken link between two nodes for good costs ever fewer attempts, whatever is saved",
    "passed over is not evaluated": "with every_steps, no plan is for a checkpoint of the multiple that was reached, "
    "unless since then one of no higher step came that the plan settles as superseded: training was set back",
    "the oldest gives way": "with a budget of pins that is used up, the oldest that waits gives way to one that lies "
    "there unpinned",
    "finished evaluations succeed": "what all ranks finished, and saved where all see it, is written by any daemon "
    "that has the result and is well, once those before it had their turns",
    "stuck groups are noticed": "a group whose ranks all wait for each other for good is given up soon",
    "evaluations are counted": "a plan says how many evaluations of its task succeeded before it",
    "evaluation follows discovery": "with queue=every, of two that never failed, the one that was saved first is "
    "planned first",
    "attempts keep their pace": "no attempt comes sooner than the backoff after the failure before it",
}

_LASTING = 2.5  # seconds of a fault that lasts: so often an attempt may fail in it
_AGAIN = 4  # times in a row that a node loses a checkpoint: of one or two it may be that others were not ready yet
_MOMENT = 2  # attempts that a fault of one moment may cost: what was going on, and what began before it was known


@dataclass(slots=True)
class _Count:
    """Successes of the task that succeeded last, as the journal tells them."""

    task: str | None = None
    successes: int = 0


@dataclass(slots=True)
class Promises:
    """Told by the referee and the simulation of every effect; asked of nothing."""

    simulation: object
    referee: object
    known: dict = field(default_factory=dict)  # every content that was ever there, by key
    there: dict = field(default_factory=dict)  # what is in the directory or pinned now
    there_since: dict = field(default_factory=dict)
    stays: dict = field(default_factory=dict)  # of all that was ever there: from when to when it was, each time
    owed: set = field(default_factory=set)  # lay there whole for long enough
    excused: set = field(default_factory=set)  # a person deleted its pin, or asked for it again
    causes: dict = field(default_factory=dict)  # why a plan failed with a kind that blames the checkpoint
    failures: Counter = field(default_factory=Counter)  # in all, by key
    too_late: Counter = field(default_factory=Counter)  # of these: deleted before the node that failed had its own pin
    failed_at: dict = field(default_factory=dict)  # key, task: when, and how often in a row
    failed_when: dict = field(default_factory=dict)  # plans that failed: when
    strikes: list = field(default_factory=list)
    line_drawn_at: float = math.inf  # with start=new: when the journal said what was there before the start
    planned_once: set = field(default_factory=set)
    reached: int | None = None  # the step of the checkpoint that was planned for the first time last
    reached_at: float = 0.0
    planned_with_who_left: int = 0
    _count: _Count = field(default_factory=_Count)

    # -- told ---------------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Note what came and went."""
        now, there = self.simulation.scheduler.now, {each.key: each for each in self.simulation.disk.all()}
        self.known |= there
        for key in there:
            if key not in self.there:
                self.there_since[key] = now
                self.stays.setdefault(key, []).append((now, math.inf))
        for key in self.there:
            if key not in there:
                self.stays[key][-1] = self.there_since[key], now
        self.there = there

    def note(self) -> None:
        """Note what lies there for so long by now that its evaluation is owed; called before anything changes."""
        disk = self.simulation.disk
        waiting = [each for each in disk.checkpoints.values() if each.key not in self.owed]
        if not waiting:
            return
        now = self.simulation.scheduler.now
        for life, since in self._healthy():
            long_enough = self._long_enough(life.host.spec.settings, len(disk.checkpoints))
            for content in waiting:
                lies_since = self.there_since.get(content.key, now)
                if now - max(since, lies_since) >= long_enough and self.reads(life, content):
                    self.owed.add(content.key)

    def struck(self, fault) -> None:
        """Note a fault, just before it strikes."""
        self.note()
        self.strikes.append(fault)

    def wiped(self) -> None:
        """The state directory was deleted: what only pins held is gone with it."""
        lying = {each.key for each in self.simulation.disk.checkpoints.values()}
        self.excused |= self.there.keys() - lying
        self.owed.clear()
        self.planned_once.clear()
        self.reached, self.line_drawn_at = None, math.inf
        self.failed_at.clear()
        self._count = _Count()
        self.changed()

    def rewound(self, book) -> None:
        """Records are gone again that nobody had relied on."""
        self._count = _Count()
        self.failed_at.clear()
        self.planned_once, self.reached, self.line_drawn_at = set(), None, math.inf
        for number, plan in sorted(book.plans.items()):
            outcome = book.outcomes.get(number)
            if outcome is not None and outcome.status == "succeeded":
                self._succeeded(plan)
            if (
                plan.checkpoint is not None
                and plan.members is not None
                and plan.checkpoint.key not in self.planned_once
            ):
                self.planned_once.add(plan.checkpoint.key)
                self.reached = plan.checkpoint.step

    def restored(self) -> None:
        """A former journal was restored: what it does not know any more, and lies nowhere, is lost."""
        self.excused |= self.known.keys() - self.there.keys()

    def planned(self, plan: Plan, life) -> None:
        """A plan was created; the book does not hold it yet."""
        for each in plan.settles:
            if each.verdict == "requeued":
                self.excused.add(each.key)
                self.failed_at = {at: each_ for at, each_ in self.failed_at.items() if at[0] != each.key}
        if not plan.line_open:
            self.line_drawn_at = min(self.line_drawn_at, self.simulation.scheduler.now)
        if plan.checkpoint is None or plan.members is None:
            return
        expected = self._count.successes if plan.task == self._count.task else 0
        self._check(
            "evaluations are counted",
            plan.evaluated == expected,
            lambda: f"plan {plan.plan} by {life.name} says {plan.evaluated} of {plan.task}; there were {expected}",
        )
        self._check_pace(plan, life)
        self._check_order(plan, life)
        self._check_steps(plan, life)
        self._check_room(plan, life)

    def closed(self, plan: Plan, outcome: Outcome, life) -> None:
        """An outcome was created."""
        assert plan.checkpoint is not None
        if outcome.kind == "vanished" and outcome.node == life.host.name:
            self._check_found(plan, life)
        if outcome.status == "succeeded":
            self._succeeded(plan)
            return
        self.failures[plan.checkpoint.key] += 1
        self.too_late[plan.checkpoint.key] += self._came_too_late(plan, outcome)
        if outcome.kind == "member_lost":  # it had ended its run, and whoever planned did not know yet
            others = [each for each in self.simulation.lives if each.host.name == outcome.node and each.ended_after]
            self.planned_with_who_left += any(each.ended_after[0] < plan.plan for each in others)
        self.failed_when[plan.plan] = self.simulation.scheduler.now
        at = plan.checkpoint.key, plan.task
        _, count = self.failed_at.get(at, (0.0, 0))
        self.failed_at[at] = self.simulation.scheduler.now, count + 1

    def _came_too_late(self, plan: Plan, outcome: Outcome) -> bool:
        """Return whether training deleted it before a node had downloaded it, which another node has pinned."""
        assert plan.checkpoint is not None
        disk, key = self.simulation.disk, plan.checkpoint.key
        without = all(each.key != key for each in disk.seen_by(outcome.node))
        return self.simulation.scenario.bucket and outcome.kind == "vanished" and without and key in self.there

    def _check_found(self, plan: Plan, life) -> None:
        """Check that a node which says that a checkpoint vanished does not see a broken pin of it."""
        assert plan.checkpoint is not None
        host, settings = life.host, life.host.spec.settings
        pin = self.simulation.disk.pins_of(host.name).get(plan.checkpoint.folder)
        now, since = self.simulation.scheduler.now, life.catalog.pin_bad_since(plan.checkpoint.folder)
        since = max(since, host.daemon_troubled_until, self.simulation.troubled_until)
        known_for = now - since - settings.visibility - 2 * settings.sweep - 1.0
        self._check(
            "failures tell what was found",
            pin is None or not is_bad(pin, host.name) or known_for < 0.0,
            lambda: f"plan {plan.plan} failed as vanished on {host.name}, which has found its pin bad for long",
        )

    def failed_for(self, number: int, kind: str, cause: str) -> None:
        """Note why a worker fails: `seed`, as it was told to; `odd`, a minority of ranks differed; `even`, not so."""
        if FAILURE_CLASSES.get(kind) == "checkpoint":
            self.causes[number] = "odd" if "odd" in (cause, self.causes.get(number)) else cause

    def _succeeded(self, plan: Plan) -> None:
        if plan.task != self._count.task:
            self._count = _Count(plan.task)
        self._count.successes += 1

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def settled(self, plan: Plan, settlement: Settlement, failures: list[Outcome], life) -> None:
        """A plan settles a checkpoint; `failures` are its attempts under that plan's task so far."""
        checks = {
            "vanished": self._check_vanished,
            "skipped": self._check_skipped,
            "corrupt": self._check_corrupt,
            "failed": self._check_failed,
        }
        if settlement.verdict in checks:
            checks[settlement.verdict](plan, settlement, failures, life)

    def _check_vanished(self, plan: Plan, settlement: Settlement, failures: list[Outcome], life) -> None:
        now, gone_at = self.simulation.scheduler.now, self._gone_since(settlement.key, life)
        least = 0.0 if _witnesses(failures, "vanished") > 1 else life.host.spec.settings.visibility
        for_so_long = "it is there" if gone_at > now else f"it is gone for {now - gone_at:.1f} s"
        self._check(
            "vanished is gone",
            now - gone_at >= least - 0.001,
            lambda: f"plan {plan.plan} by {life.name} says that {settlement.name} vanished: {for_so_long}",
        )

    def _gone_since(self, key, life) -> float:
        """Return since when it is gone, as far as that daemon can know; infinity while it is there.

        A look does not notice a checkpoint that was back for a moment between two looks. With the state in a bucket,
        the heartbeat of another node must tell first that it is on that node's disk.
        """
        settings = life.host.spec.settings
        unnoticed = 2 * settings.sweep + 1.0 + settings.lease * self.simulation.scenario.bucket
        now, seen_at = self.simulation.scheduler.now, life.catalog.seen_at.get(key, -math.inf)
        gone_at = math.inf
        for came, gone_at in reversed(self.stays.get(key, ())):
            if seen_at >= came or min(gone_at, now) - came > unnoticed:
                break
        return gone_at

    def _check_corrupt(self, plan: Plan, settlement: Settlement, failures: list[Outcome], life) -> None:
        content = self.known.get(settlement.key)
        if content is None or "*" in content.corrupt_on or len(self.corrupt_witnesses(content.key, failures)) > 1:
            self._check("corrupt is not readable", holds=True)
            return
        now = self.simulation.scheduler.now
        readers = [
            other.name
            for other, since in self._healthy(passing=True)
            if other is not life
            and now - since >= 2 * other.host.spec.settings.lease
            and self.reads(other, content)
            # An older release stands by, and is not ready, once it cannot read the journal.
            and other.host.spec.schema >= self.referee.newest_schema
        ]
        alone = sum(outcome.kind == "corrupt" for outcome in failures) >= life.host.spec.settings.max_attempts
        self._check(
            "corrupt is not readable",
            not readers or alone,
            lambda: f"plan {plan.plan} by {life.name} says that {settlement.name} is corrupt; {readers} can read it",
        )

    def corrupt_witnesses(self, key, failures: list[Outcome]) -> set:
        """Return the nodes that found a checkpoint corrupt in attempts and, next to one of these, in their scans."""
        nodes = {outcome.node for outcome in failures if outcome.kind == "corrupt"}
        now, lives = self.simulation.scheduler.now, self.simulation.lives if nodes else ()
        return nodes | {
            life.host.name
            for life in lives
            if min(now, life.ended) - life.catalog.bad_since(key) >= life.host.spec.settings.visibility
        }

    def _check_failed(self, plan: Plan, settlement: Settlement, failures: list[Outcome], life) -> None:
        settings = life.host.spec.settings
        odd = sum(
            FAILURE_CLASSES[each.kind or ""] == "checkpoint" and self.causes.get(each.plan) == "odd"
            for each in failures
        )
        of_checkpoint = sum(FAILURE_CLASSES[each.kind or ""] == "checkpoint" for each in failures) - odd
        even = [
            each
            for each in failures
            if FAILURE_CLASSES[each.kind or ""] == "checkpoint" and self.causes.get(each.plan) != "odd"
        ]
        lost = len(failures) - of_checkpoint + sum(bool(each.odd) for each in even)  # one half may be taken for odd
        self._check(
            "failed is earned",
            of_checkpoint >= settings.max_attempts or lost >= settings.max_losses,
            lambda: (
                f"plan {plan.plan} by {life.name} says {settlement} after {[each.kind for each in failures]}; in "
                f"{odd} of them a minority was odd"
            ),
        )

        self._check_left_out(plan, settlement, failures, life)

    def _check_left_out(self, plan: Plan, settlement: Settlement, failures: list[Outcome], life) -> None:
        """Check that no node is to blame so often that the others must have been enough without it."""
        lost = Counter(node for each in failures for node in each.odd or filter(None, [each.node]))
        content = self.known.get(settlement.key)
        if content is None or not lost or not life.host.spec.standby or self.simulation.broken_links:
            self._check("who fails it is left out", holds=True)  # without standbys, who is in a group with it needs it
            return
        worst, count = lost.most_common(1)[0]
        blamed = [self.failed_when[each.plan] for each in failures if worst in (*each.odd, each.node)]
        enough, settings = 0, life.host.spec.settings
        for other, since in self._healthy(passing=True):
            well = max(since, other.host.troubled_until) <= blamed[-min(_AGAIN, count)]
            alike = other.host.spec.kind == life.host.spec.kind and self.reads(other, content)
            if well and alike and lost[other.host.name] <= count - _AGAIN:
                enough += other.host.spec.replicas
        self._check(
            "who fails it is left out",
            enough < settings.min_workers,
            lambda: (
                f"plan {plan.plan} by {life.name} says {settlement}; {worst} lost it {count} times of {len(failures)}"
            ),
        )

    def _check_skipped(self, plan: Plan, settlement: Settlement, _: list[Outcome], life) -> None:
        settings, content = life.host.spec.settings, self.known.get(settlement.key)
        others = [each for each in self.known.values() if each.key != settlement.key]
        reasons: list[bool] = []
        if content is not None:
            newer = [each for each in others if (each.written_at, each.step) > (content.written_at, content.step)]
            newer += [each for each in others if life.catalog.ordered(content, each)]
            reasons = [
                settings.queue == "latest" and bool(newer),
                settings.every_steps is not None
                and (bool(newer) or self._was_gone(content, life))
                and _reached(content, others, settings.every_steps),
                settings.pin_max is not None and bool(newer),
                settings.start_new
                and not life.began_first
                and content.written_at <= min(life.first_look_at, self.line_drawn_at),
            ]
        self._check(
            "skipped is passed over",
            any(reasons) and self._may_decide(life),
            lambda: (
                f"plan {plan.plan} by {life.name} says {settlement}: {settings}"
                + ("" if self._may_decide(life) else ", which is not of the largest kind")
            ),
        )

    def _was_gone(self, content, life) -> bool:
        """Return whether it is gone, or was just now. A silent node does not tell what is on its own disk alone."""
        now, settings = self.simulation.scheduler.now, life.host.spec.settings
        if content.key not in self.there or self.there_since.get(content.key, 0.0) > max(
            now - settings.visibility, content.written_at
        ):
            return True
        telling = [life.host.name, *(each.host.name for each, since in self._healthy(passing=True) if since < now)]
        disk = self.simulation.disk
        return all(each.key != content.key for host in telling for each in disk.seen_by(host))

    # -- attempts -----------------------------------------------------------------------------------------------------

    def _check_pace(self, plan: Plan, life) -> None:
        assert plan.checkpoint is not None
        known, settings = self.failed_at.get((plan.checkpoint.key, plan.task)), life.host.spec.settings
        if known is None or life.began >= known[0]:  # a daemon that starts does not know when that was
            return
        at, count = known
        pause = min(settings.backoff_last, settings.backoff_first * 2.0 ** (count - 1))
        waited = self.simulation.scheduler.now - at
        self._check(
            "attempts keep their pace",
            waited >= pause,
            lambda: f"plan {plan.plan} by {life.name} comes {waited:.2f} s after failure {count}, not {pause:.2f} s",
        )

    def _check_order(self, plan: Plan, life) -> None:
        assert plan.checkpoint is not None
        settings, content = life.host.spec.settings, self.known.get(plan.checkpoint.key)
        if settings.queue != "every" or settings.every_steps is not None or content is None:
            return
        if self.failures[content.key] or content.key in self.excused:
            return
        now, calm = self.simulation.scheduler.now, max(life.host.daemon_troubled_until, self.simulation.troubled_until)
        told = {each.key for each in plan.settles}
        sure = 3 * settings.sweep + 2 * settings.beat + 2.0 + 8 * self.simulation.latency * len(self.there)
        before = [
            each.name
            for each in dict.fromkeys(self.simulation.disk.pins_of(life.host.name).values())
            if each.written_at < content.written_at
            and each.step <= content.step
            and calm < each.written_at
            and each.key not in told | self.excused
            and not self.failures[each.key]
            and not self.referee.book.is_settled(each.key, plan.task)
            and now - max(self.referee.pinned_since.get(each.key, now), life.first_look_at) >= sure
            and self.reads(life, each)
            and not (settings.start_new and each.written_at <= life.first_look_at)
        ]
        self._check(
            "evaluation follows discovery",
            not before,
            lambda: f"plan {plan.plan} by {life.name} is for {content.name}; {before} lay there before it",
        )

    def _check_steps(self, plan: Plan, life) -> None:
        """A further attempt, and what a person asked for, say nothing of where evaluation stands."""
        assert plan.checkpoint is not None
        key, step, every = plan.checkpoint.key, plan.checkpoint.step, life.host.spec.settings.every_steps
        if key in self.planned_once or key in self.excused or step is None:
            return
        self.planned_once.add(key)
        reached, self.reached = self.reached, step
        since, self.reached_at = self.reached_at, life.looked_at
        content = self.known.get(key)
        if every is None or reached is None or content is None or self.simulation.disk.done_at is not None:
            return
        ascends = all(each.step < step for each in self.known.values() if each.written_at < content.written_at)
        set_back = any(
            each.verdict == "skipped" and (each.step or 0) <= reached and self._came(each.key, life) > since
            for each in plan.settles
        )
        self._check(
            "passed over is not evaluated",
            set_back or not ascends or not reached < step or step // every > reached // every,
            lambda: f"plan {plan.plan} by {life.name} is for step {step}; {reached} was reached, every {every}",
        )

    def _came(self, key, life) -> float:
        """Return when that daemon came to see it, or saw it again after it was gone."""
        seen_at = life.catalog.discovery.seen_at.get(key, 0.0)
        return max(seen_at, self.there_since.get(key, 0.0))

    def _check_room(self, plan: Plan, life) -> None:
        assert plan.checkpoint is not None
        settings, disk, book = life.host.spec.settings, self.simulation.disk, self.referee.book
        now = self.simulation.scheduler.now
        since = max(
            life.host.daemon_troubled_until, self.simulation.troubled_until, life.first_look_at, self.referee.wiped_at
        )
        if settings.pin_max is None or settings.queue != "every" or settings.every_steps is not None:
            return
        pins = disk.pins_of(life.host.name).values()
        pinned = {each.key for each in pins}
        told = {each.key for each in plan.settles} | {plan.checkpoint.key}
        known = {each.key for each in pins if self.reads(life, each)}  # without those that a newer release has made
        needed = [key for key in known - told if not book.is_settled(key, plan.task)]
        full = len(pinned) >= settings.pin_max and len(needed) == len(pinned - {plan.checkpoint.key}) and bool(needed)
        if not full:
            return
        long_enough = 2 * settings.sweep + 0.5 + 8 * self.simulation.latency * len(disk.checkpoints)
        stood = all(now - self.referee.pinned_since.get(key, now) >= long_enough for key in pinned)
        waiting = [
            each.name
            for each in disk.checkpoints.values()
            if each.key not in pinned
            and now - max(since, each.written_at) >= long_enough
            and self.reads(life, each)
            and not book.is_settled(each.key, plan.task)
            and each.key not in told | self.excused
        ]
        self._check(
            "the oldest gives way",
            not (waiting and stood),
            lambda: (
                f"plan {plan.plan} by {life.name} lets {sorted(key[0] for key in pinned)} stay; {waiting} find no room"
            ),
        )

    def _check_finished(self, plan: Plan, life) -> None:
        simulation, members = self.simulation, plan.members or ()
        done, host = simulation.done.get(plan.plan, {}), life.host
        if len(done) < len(members) or not any(worker in life.processes for worker in done):
            return
        nodes = list(dict.fromkeys(member.node for member in members))
        finished, settings, now = max(done.values()), host.spec.settings, simulation.scheduler.now
        if simulation.scenario.bucket:  # it waits for the saves of all nodes, and asks for them ever less often
            saves = [simulation.disk.saves.get(folder) for folder in plan.saves]
            seen_at = max(math.inf if each is None else each.uploaded_at for each in saves)
            finished = max(seen_at + (seen_at - finished) / 2, life.objects.record_refused_at)
        calm = max(host.troubled_until, simulation.troubled_until) < finished
        turn = finished + (nodes.index(host.name) + 1) * settings.patience + 3 * settings.beat + 5.0
        self._check(
            "finished evaluations succeed",
            not calm or now <= turn,
            lambda: f"plan {plan.plan} is open at {life.name}, which has had the result for {now - finished:.1f} s",
        )

    def turned(self, life, plan: Plan) -> None:
        """A daemon's loop turned while a plan is open."""
        self._check_finished(plan, life)
        since = self.simulation.stuck.get(plan.plan)
        if since is None:
            return
        settings, now = life.host.spec.settings, self.simulation.scheduler.now
        since = max(since, life.began, life.host.troubled_until, self.simulation.troubled_until)
        longest = life.daemon.requests.rules.plans.collective_timeout_seconds + 4 * settings.beat + settings.lease + 5.0
        self._check(
            "stuck groups are noticed",
            now - since <= longest,
            lambda: f"plan {plan.plan} is open at {life.name}, {now - since:.1f} s after all its ranks got stuck",
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        """Faults are over for long, and all is settled; what is back although it had vanished is evaluated, too."""
        simulation, book = self.simulation, self.referee.book
        back = [key for key in self.there if any(each.verdict == "vanished" for each in book.settled.get(key, ()))]
        if back and not simulation.purged and simulation.could_go_on():
            simulation.scheduler.run(simulation.scheduler.now + simulation.bound())
        self.note()
        self._check_attempts()
        book = self.referee.book
        if self.referee.run is None or simulation.purged or not simulation.could_go_on():
            return
        healthy = (life.host.spec for life, _ in self._healthy(passing=True))
        tasks = {spec.task for spec in healthy if self._is_largest(spec.kind)}  # the others wait, and say so
        for key in sorted(self.owed - self.excused):
            content = self.known[key]
            verdicts = [each.verdict for each in book.settled.get(key, ())]
            holds = key in book.succeeded or (
                "vanished" not in verdicts and all(book.is_settled(key, task) for task in tasks)
            )
            self._check(
                "whole checkpoints succeed",
                holds or "*" in content.corrupt_on,
                lambda: f"{content.name} lay there whole; it ended {verdicts or 'in no record'}",  # noqa: B023
            )
        self._check_publisher()

    def _check_publisher(self) -> None:
        simulation = self.simulation
        kinds = self._kinds()
        if simulation.violation is not None or not kinds or list(kinds.values()).count(max(kinds.values())) > 1:
            return
        end = simulation.scheduler.now + simulation.bound()
        while not self._is_one(there := self._publishers()) and simulation.scheduler.now < end and self._reading():
            simulation.scheduler.run(simulation.scheduler.now + 1.0)
        if self._reading():
            names = [life.name for life in there]
            self._check("one publisher", self._is_one(there), lambda: f"after faults stopped {names} publish")

    def _reading(self) -> list:
        """Return who evaluates and can read the journal: others stand by, also when they are all that is left."""
        newest = self.referee.newest_schema
        return [life for life in self.simulation.evaluating_lives() if life.host.spec.schema >= newest]

    def _is_one(self, there: list) -> bool:
        """Whether one publishes, and at most one more: of a newer release, whose heartbeats the others cannot read.

        They follow the journal alike, until that release writes there: then who cannot read it stands by.
        """
        schemas = sorted(life.host.spec.schema for life in there)
        oldest = min((life.host.spec.schema for life in self.simulation.evaluating_lives()), default=1)
        one_each = len(set(schemas)) == len(schemas)
        return len(there) == 1 or (one_each and schemas[:1] == [oldest] and oldest >= self.referee.newest_schema)

    def _publishers(self) -> list:
        return [life for life in self.simulation.evaluating_lives() if life.daemon.status().publisher]

    def _check_attempts(self) -> None:
        hosts = len(self.simulation.hosts)  # a node without the files is left out of the next plan
        failures = self.failures - Counter({key: min(count, hosts) for key, count in self.too_late.items()})
        odd = int(any(not host.spec.shows_profile for host in self.simulation.hosts))
        odd *= sum(life.role == "worker" for life in self.simulation.lives)
        allowed = odd + sum(
            _MOMENT + math.ceil(fault.length / _LASTING) for fault in self.strikes if fault.kind != "links_broken"
        )
        if any(fault.kind == "links_broken" for fault in self.strikes):
            plans = len(self.referee.book.plans)
            # Each node may be blamed for it, and is then left out of ever more plans: of 1, 2, 4, 8, 16, 16, …
            nodes = len(self.simulation.scenario.nodes)
            bound = nodes * (3 + int(math.log2(plans + 1)) + plans // 32)
            total = sum(failures.values())
            self._check(
                "losses are bounded",
                total <= bound,
                lambda: f"{total} of {plans} plans failed, with one link broken; {bound} would be reasonable",
            )
            return
        # Where no worker stands by, whoever comes ends the group that is there, maybe just when a plan lists it.
        late = [each for each in self.simulation.scenario.nodes if each.starts_at and not each.standby]
        allowed += len(late) + self.planned_with_who_left
        odd += len(late) + self.planned_with_who_left
        # A group without standbys ends to take in another node. Meanwhile one that cannot read it may be there alone.
        lasts = any(fault.kind in ("corrupt_on_one", "restored_wrong_on_one") for fault in self.strikes)
        if lasts and not all(each.standby for each in self.simulation.scenario.nodes):
            allowed += max(each.settings.max_attempts for each in self.simulation.scenario.nodes)
        if not self.strikes:
            total = sum(failures.values())
            self._check(
                "attempts are bounded",
                total <= odd,
                lambda: f"{total} attempts failed without a fault; profiles and who came late explain {odd}",
            )
        for key, count in sorted(failures.items()):
            self._check(
                "attempts are bounded",
                count <= allowed,
                lambda: f"{key[0]} failed {count} times; {[each.kind for each in self.strikes]} explain {allowed}",  # noqa: B023
            )

    # -- who is there -------------------------------------------------------------------------------------------------

    def _healthy(self, *, passing: bool = False):
        """Yield daemons that are well, and since when; unless `passing`, those that pass nothing over and decide."""
        simulation = self.simulation
        for host in simulation.hosts:
            life = host.life
            if not host.runs or life.role != "worker" or life.terminated or not life.first_look_at < math.inf:
                continue
            settings = host.spec.settings
            passes = settings.queue != "every" or settings.every_steps or settings.start_new or settings.pin_max
            if not passing and (passes or not self._is_largest(host.spec.kind)):
                continue
            yield (
                life,
                max(life.first_look_at, host.daemon_troubled_until, simulation.troubled_until, self.referee.wiped_at),
            )

    def _kinds(self) -> Counter:
        return Counter(host.spec.kind for host in self.simulation.worker_nodes())

    def _is_largest(self, kind) -> bool:
        kinds = self._kinds()
        return kinds[kind] == max(kinds.values(), default=0)

    def _may_decide(self, life) -> bool:
        """Return whether its kind could be the largest, as far as anybody could see."""
        now, kind = self.simulation.scheduler.now, life.host.spec.kind
        healthy = Counter(
            other.host.spec.kind
            for other, since in self._healthy(passing=True)
            if now - since >= 4 * other.host.spec.settings.lease + 10.0 and other.daemon.state.shown_state == "ready"
        )
        return self._kinds()[kind] >= max(healthy.values(), default=0)

    def reads(self, life, content, since: float = math.inf) -> bool:
        """Return whether nothing keeps that node from reading it, or has since then."""
        node = life.host.name
        bad = {"*", node} & (content.corrupt_on | content.wrong_on)
        name, host = content.name, life.host
        entries = f"checkpoint:{name}", f"pin:{name}@{content.digest[:12]}", f"hangs:{name}"
        since = min(since, self.simulation.scheduler.now)
        bad |= {entry for entry in entries if host.wrong.get(entry, 0.0) > since}
        return not bad and content.schema <= life.host.spec.schema

    def _long_enough(self, settings, count: int) -> float:
        """Seconds in which a healthy node holds what it sees, if there are so many."""
        simulation = self.simulation
        seconds = settings.visibility + 3 * settings.sweep + 2 * settings.beat + 2.0 + 8 * simulation.latency * count
        if not simulation.scenario.links:
            seconds += 15 * settings.sweep
        if not simulation.scenario.links and not simulation.scenario.bucket:  # nodes take turns
            seconds += 2 * settings.patience * (len(simulation.hosts) + 1)
        return seconds

    def _check(self, promise: str, holds: bool, message="") -> None:
        self.referee.check(promise, holds, message)


def _witnesses(failures: list[Outcome], kind: str) -> int:
    return len({outcome.node for outcome in failures if outcome.kind == kind})


def _reached(content, others, every: int) -> bool:
    """Return whether another one stands for the same multiple of steps."""
    return any(each.step < content.step and each.step // every == content.step // every for each in others)
