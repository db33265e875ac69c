"""Rules broken on purpose, whose breach journals do not show: who evaluates, skips or gives up what, when and why."""

from dataclasses import fields, replace
from operator import attrgetter

from sidecar.checkpoints.presence import Answer, Presence
from sidecar.coordination import journal, liveness, run
from sidecar.coordination.checkpoint_verdicts import CheckpointVerdicts
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.newest_task import NewestTask
from sidecar.coordination.totals import Totals
from sidecar.daemon import checkpoint_tracker, state
from sidecar.daemon.lost_checkpoints import LostCheckpoints
from sidecar.daemon.plan_execution import Success
from sidecar.daemon.plan_runner import PlanRunner
from sidecar.daemon.request_builder import RecordBuilder
from sidecar.policy import decide, eligibility, group_formation, settlements
from sidecar.policy.selection import Selection
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.states import FAILURE_CLASSES
from sidecar.retention.pins.copy_arbiter import CopyArbiter
from sidecar.retention.pins.policy import Fate, PinDecision, PinPolicy
from simulation import by_hand, checkpoints
from simulation.generations import BUCKET, make
from simulation.mutation import Mutation, with_fault, with_setting

_choose, _see, _update, _decide = (
    Selection.choose,
    checkpoint_tracker.CheckpointTracker.see,
    LostCheckpoints.update,
    PinPolicy.decide,
)
_settle, _evaluate, _judge = JournalState._settle, decide._evaluate, decide.judge_open_plan
_may_write = PlanRunner.may_write
_observe = liveness.Liveness._observe
_advance, _is_mine = PlanRunner.advance, CopyArbiter.is_mine


# -- which checkpoints are evaluated ----------------------------------------------------------------------------------


def _skip_every_second(self, waiting, history, *, over=False):
    choice = _choose(self, waiting, history, over=over)
    second = [each for each in choice.evaluate if ((each.step or 0) // 100) % 2]
    passed = choice.passed | {each.key: "every second is enough" for each in second}
    left = tuple(each for each in choice.evaluate if each not in second)
    return replace(choice, evaluate=left, passed=passed, settled=(*choice.settled, *second))


def _skip_what_comes_later(self, scan, *arguments):
    new = _see(self, scan, *arguments)
    if self.start_new and self.unwanted is not None:
        self.unwanted |= {found.checkpoint.key for found in new}
    return new


def _forget_that_nothing_was_there(self, scan, *arguments):
    self.began_first = False
    return _see(self, scan, *arguments)


def _give_up_at_once(self, *arguments):
    _update(self, *arguments)
    for key, lost in self._lost.items():
        self.given_up[key] = lost.settlement


def _newest_first(view, rules, now, queue):
    return _evaluate(view, rules, now, queue[::-1])


def _always_reach(self, checkpoint):
    if checkpoint.step is not None:
        self.last_planned_step = checkpoint.step


def _keep_the_past(self, settlement):
    known = self.verdicts.failures.get(settlement.key)
    _settle(self, settlement)
    if settlement.verdict == "requeued" and known:
        self.verdicts.failures[settlement.key] = known


def _stay_succeeded(self, settlement):
    succeeded = settlement.key in self.verdicts.succeeded
    _settle(self, settlement)
    if succeeded:
        self.verdicts.succeeded.add(settlement.key)


# -- who does it ------------------------------------------------------------------------------------------------------


def _members_anyway(alike, *_):
    return list(alike)


def _ready_at_once(*_):
    return 0.0


def _everybody(*_):
    return True


def _nobody(*_, **__):
    return False


def _no_exports(*_):
    return {}


def _forget_all(self, _):
    self.ranked = {}


def _export_goes(self, _, plan):
    return Fate.STAYS if plan > self.history.through else Fate.GOES


def _advance_without_downloads(self, now, *, answered):
    timing, self.timing = self.timing, replace(self.timing, transfer_seconds=None)
    _advance(self, now, answered=answered)
    self.timing = timing


def _only_the_first(self, discovered, *, before, now):
    return before == 0 and _is_mine(self, discovered, before=before, now=now)


def _never_stuck(plan, view, rules, now):
    return _judge(plan, replace(view, timers=replace(view.timers, all_ranks_waiting_since=None)), rules, now)


def _only_rank_0(self, ending, now):
    return not (isinstance(ending, Success) and self.execution.before) and _may_write(self, ending, now)


def _by_own_settings(self, found):
    pin = _decide(self, found).pin
    return PinDecision(pin, pin)


def _any_change(self, node, found, now):
    watch = self._watches.get(node)
    known = None if watch is None else watch.signs.heartbeat
    if found is not None and known is not None and found.beat < known.beat:
        watch.signs.heartbeat = replace(known, beat=-1)
    return _observe(self, node, found, now)


def _believe_it(self, plan, *_):
    self._at = journal._Place(plan)
    return True


def _failed_for_all(self, key, _):
    return key in self.succeeded or key in self.settled


def _one_is_enough(checkpoint, failures, *arguments):
    last = failures[-1]
    for verdict in ("vanished", "corrupt"):
        if any(FAILURE_CLASSES.get(outcome.kind or "") == verdict for outcome in failures):
            return verdict, f"{last.kind}: {last.message}"
    return _exhausted(checkpoint, failures, *arguments)


# -- what one node finds ----------------------------------------------------------------------------------------------


def _without_visibility(self, *arguments):
    self.vanished_after_seconds = 0.0
    _update(self, *arguments)


def _kind_without_profile(each, kind):
    return (each.code, each.task) == kind[:2]


def _kind_without_code(each, kind):
    return each.task == kind[1] and each.numerics.fit(kind[2])


def _not_odd(self, *arguments):
    outcome = _failure(self, *arguments)
    return replace(outcome, odd=()) if "odd" in {each.name for each in fields(outcome)} else outcome


def _gone(*_):
    return Answer(Presence.GONE)


def _nothing(*_, **__):
    return None


def _empty(*_, **__):
    return ()


def _in_turn(alike, *_):
    return list(alike)


_exhausted = settlements.verdict_of_failures
_failure = RecordBuilder.failure


def _shape(*shapes: str):
    return lambda scenario: scenario.shape in shapes


def _differ(name: str):
    return lambda scenario: len({getattr(node, name) for node in scenario.nodes if node.role == "worker"}) > 1


_EVERY_STEPS = with_setting(every_steps=lambda every: every is not None)
_BUDGET = with_setting(pin_max=lambda most: most is not None, queue="every", every_steps=None)

MUTATIONS = (
    Mutation(
        "every second is skipped",
        ((Selection, "choose", _skip_every_second),),
        ("skipped is passed over",),
        with_setting(queue="every", every_steps=None),
    ),
    Mutation(
        "with start=new what comes later is skipped, too",
        ((checkpoint_tracker.CheckpointTracker, "see", _skip_what_comes_later),),
        ("skipped is passed over",),
        with_setting(start_new=True),
    ),
    Mutation(
        "with start=new what training saved before a daemon saw the directory is skipped, though it began before that",
        ((checkpoint_tracker.CheckpointTracker, "see", _forget_that_nothing_was_there),),
        ("skipped is passed over",),
        with_setting(start_new=True),
    ),
    Mutation(
        "what cannot be read for a while has vanished",
        (
            (checkpoints.NodeCatalog, "_doubt", _nothing),
            (checkpoints.NodeCatalog, "ask", _gone),
        ),
        ("vanished is gone", "whole checkpoints succeed"),
        with_fault("pin_unreadable", "checkpoint_unreadable"),
        tuple(by_hand.varied(by_hand.pin_is_unreadable(), 20)),
    ),
    Mutation(
        "gone from one scan has vanished",
        ((LostCheckpoints, "update", _give_up_at_once),),
        ("vanished is gone",),
    ),
    Mutation(
        "losers stay",
        ((group_formation, "choose_nodes", _members_anyway),),
        ("losses are bounded", "failed is earned", "attempts are bounded"),
        _shape("lonely"),
    ),
    Mutation("no backoff", ((decide, "ready_at", _ready_at_once),), ("attempts keep their pace",)),
    Mutation(
        "all publish",
        ((state.DaemonState, "publishes", _everybody),),
        ("one publisher",),
        lambda scenario: len(scenario.nodes) > 1,
    ),
    Mutation(
        "nobody publishes",
        ((state.DaemonState, "publishes", _nobody),),
        ("one publisher",),
    ),
    Mutation(
        "evaluations are not counted",
        ((NewestTask, "successes_of", lambda *_: 0),),
        ("evaluations are counted",),
    ),
    Mutation(
        "the newest first",
        ((decide, "_evaluate", _newest_first),),
        ("evaluation follows discovery",),
        _shape("backlog", "calm"),
    ),
    Mutation(
        "every attempt reaches its step",
        ((JournalState, "_note_planned", _always_reach),),
        ("passed over is not evaluated",),
        _EVERY_STEPS,
        tuple(by_hand.varied(by_hand.older_attempt_comes_later(), 20)),
    ),
    Mutation(
        "nobody gives way",
        ((settlements, "_give_up_for_room", _empty),),
        ("the oldest gives way",),
        _BUDGET,
        tuple(by_hand.varied(by_hand.budget_is_used_up(), 20)),
    ),
    Mutation(
        "pins of the best are let go",
        ((PinPolicy, "exported", _no_exports),),
        ("the best are exported",),
        first=tuple(by_hand.exporting(make(seed)) for seed in range(1, 20)),
    ),
    Mutation(
        "exports go whatever their rank",
        ((PinPolicy, "fate_of_export", _export_goes),),
        ("the best are exported",),
        first=tuple(by_hand.exporting(make(seed)) for seed in range(1, 20)),
    ),
    Mutation(
        "numbers of other data compete",
        ((NewestTask, "outdated", lambda *_: frozenset()),),
        ("the best are exported",),
        first=tuple(by_hand.exporting(make(seed), 1, data_last=3) for seed in range(1, 40)),
    ),
    Mutation(
        "the best one of before is let go",
        ((Totals, "begin_anew", _forget_all),),
        ("the best are exported",),
        first=tuple(by_hand.exporting(make(seed), 1, data_last=3) for seed in range(1, 40)),
    ),
    Mutation(
        "pins go by the settings of who lets them go",
        ((PinPolicy, "decide", _by_own_settings),),
        ("pins stay",),
        lambda scenario: any(
            node.settings.queue == "latest" or node.settings.every_steps is not None for node in scenario.nodes
        ),
    ),
    Mutation(
        "any snapshot is believed",
        ((journal.Journal, "resume", _believe_it),),
        ("shown is in the journal", "journal is linear"),
        with_fault("state_restored"),
    ),
    Mutation(
        "beats may go back",
        ((liveness.Liveness, "_observe", _any_change),),
        ("the dead are noticed", "all is settled"),
        with_fault("reads_go_back"),
        tuple(by_hand.varied(by_hand.dead_machine_shows_old_beats(), 40)),
    ),
    Mutation(
        "only rank 0 writes a success",
        ((PlanRunner, "may_write", _only_rank_0),),
        ("finished evaluations succeed",),
        with_fault("daemon_stop", "machine_stop", "cut_off", "storage_hangs"),
        tuple(by_hand.varied(by_hand.first_daemon_is_stopped(), 40)),
    ),
    Mutation(
        "a requeue keeps the failures of before",
        ((JournalState, "_settle", _keep_the_past),),
        ("attempts are counted", "verdicts are earned", "failed is earned"),
        with_fault("requeue"),
        tuple(by_hand.varied(by_hand.requeued_before_the_former_task_is_back(), 40)),
    ),
    Mutation(
        "a requeue of what was evaluated changes nothing",
        ((JournalState, "_settle", _stay_succeeded),),
        ("all is settled",),
        with_fault("requeue"),
        tuple(by_hand.varied(by_hand.requeued_after_its_success(), 5)),
    ),
    Mutation(
        "a group that was replaced is not spent",
        ((JournalState, "_retire_replaced", _nothing),),
        ("one group in a life", "nothing is mixed", "all is settled"),
        first=tuple(by_hand.varied(by_hand.old_heartbeat_shows_a_worker_of_a_replaced_group(), 40)),
    ),
    Mutation(
        "stuck groups wait",
        ((decide, "judge_open_plan", _never_stuck),),
        ("stuck groups are noticed",),
        _shape("lonely"),
    ),
    Mutation(
        "a failure counts for all tasks",
        ((CheckpointVerdicts, "is_settled", _failed_for_all),),
        ("all is settled", "pins stay", "whole checkpoints succeed"),
        _differ("task"),
        tuple(by_hand.varied(by_hand.failed_under_one_task(), 20)),
    ),
    Mutation(
        "one witness is enough",
        ((settlements, "verdict_of_failures", _one_is_enough),),
        ("vanished is gone", "corrupt is not readable", "verdicts are earned"),
        with_fault("corrupt_on_one", "pins_late", "stale_reads"),
    ),
)

AFTER = (
    Mutation(
        "vanished without visibility",
        ((LostCheckpoints, "update", _without_visibility),),
        ("vanished is gone",),
    ),
    Mutation(
        "what another node sees is ignored",
        (
            (settlements, "is_disputed", _nobody),
            (decide, "is_disputed", _nobody),
            (state, "is_disputed", _nobody),
            (state, "is_seen_by_others", _nobody),
        ),
        ("corrupt is not readable", "vanished is gone", "whole checkpoints succeed"),
        with_fault("corrupt_on_one"),
        tuple(by_hand.varied(by_hand.first_node_reads_it_damaged(), 40)),
    ),
    Mutation(
        "profiles are ignored",
        ((eligibility, "_may_be_of", _kind_without_profile),),
        ("failed is earned", "attempts are bounded", "whole checkpoints succeed"),
        _differ("profile"),
        tuple(by_hand.varied(by_hand.one_profile_against_one(), 20)),
    ),
    Mutation(
        "the code that makes numbers is ignored",
        ((eligibility, "_may_be_of", _kind_without_code),),
        ("failed is earned", "attempts are bounded", "whole checkpoints succeed"),
        _differ("code"),
        tuple(by_hand.varied(by_hand.one_code_against_one(), 20)),
    ),
    Mutation(
        "the text of the version decides instead of the code",
        ((Heartbeat, "code", property(attrgetter("about.version"))),),
        ("all is settled",),
        _differ("version"),
        tuple(by_hand.varied(by_hand.two_commits_of_the_same_code(), 5)),
    ),
    Mutation(
        "odd nodes are not named",
        ((RecordBuilder, "failure", _not_odd),),
        ("failed is earned",),
        with_fault("restored_wrong_on_one"),
    ),
    Mutation(
        "losses are forgotten", ((JournalState, "is_left_out", _nobody),), ("losses are bounded",), _shape("lonely")
    ),
    Mutation(
        "what vanished stays so when it is back",
        ((checkpoint_tracker.CheckpointTracker, "returned", _empty),),
        ("whole checkpoints succeed",),
        with_fault("moved_away"),
        tuple(by_hand.varied(by_hand.vanished_is_back(), 20)),
    ),
    Mutation(
        "holes are filled",
        (
            (journal.Journal, "_after_end", _nothing),
            (journal.Journal, "_reject_orphan", _nothing),
            (run, "_reject_orphans", _nothing),
        ),
        ("journal is linear", "holes are not filled"),
        with_fault("names_lost"),
    ),
    Mutation(
        "a download takes no longer than a pin that others made",
        ((PlanRunner, "advance", _advance_without_downloads),),
        ("attempts are bounded",),
        first=(make(103, BUCKET),),
    ),
    Mutation(
        "a download of one node serves all",
        ((CopyArbiter, "is_mine", _only_the_first),),
        ("attempts are bounded", "all is settled"),
        first=(make(6, BUCKET), make(78, BUCKET)),
    ),
)
"""Rules that came later: those whose place is not there yet cannot be broken."""

HARMLESS = {
    "nonces of plans in outcomes are not compared": "a missing plan is refused as a hole before its outcome is read",
    "a node that cannot read something proposes first": "the others propose what it leaves, once its patience is over",
    "a result replaces a failure that is already to be written": "the result is that of all ranks, and its saves are "
    "durable: whichever record is created first stands, and both are true",
    "nothing is read again after an absence": "records are only created behind what was read, and creating reads on",
    "run.json is not read before a create": "the storage thread has read it in the same request; the second scan only "
    "makes the moment shorter in which a person may delete everything",
    "pins go in the scan that finds them unwanted": "a grace for nodes that just came: the plan that settled it stands",
}
"""Rules whose breach nothing shows, and why no promise is broken by it."""
