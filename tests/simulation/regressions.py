"""Schedules that once found a bug: they run always, as they were drawn and with other delays.

A seed always draws the same (`generations`), but the delay of an operation changes with every request that a daemon
makes more or less. So each is run with some other delays, too; and where the mend can be undone in a few lines, it is
undone: some of these delays must then find the bug again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sidecar.checkpoints import discovery_order
from sidecar.checkpoints.scan import ScanResult
from sidecar.coordination import journal
from sidecar.coordination.checkpoint_verdicts import CheckpointVerdicts
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.liveness import Liveness
from sidecar.daemon import checkpoint_tracker, known_nodes
from sidecar.daemon.plan_runner import PlanRunner
from sidecar.daemon.storage_schedule import StorageSchedule
from sidecar.policy import decide, eligibility, group_formation, settlements
from simulation.by_hand import (
    copied_for_long_after_it_was_deleted,
    old_heartbeat_shows_a_worker_of_a_replaced_group,
    varied,
)
from simulation.generations import make
from simulation.mutation import Mutation
from simulation.scenario import Scenario

_see = checkpoint_tracker.CheckpointTracker.see
_begin = PlanRunner.begin
_advance = PlanRunner.advance
_verdict = settlements.verdict_of_failures


@dataclass(frozen=True, slots=True)
class Regression:
    """A schedule by its seed, what it found, and how the mend is undone, if that takes a few lines."""

    seed: int
    found: str
    undone: Mutation | None = None
    generation: int = 1
    delays: int = 4  # with which it is run
    by_hand: Scenario | None = None  # the same bug, found with nearly any delay

    @property
    def name(self) -> str:
        """Return how people write the seed."""
        return f"{self.generation}:{self.seed}"

    def scenarios(self, count: int | None = None) -> Iterator[Scenario]:
        """Return it as it was drawn, and with other delays; what was made by hand comes first."""
        for scenario in filter(None, (self.by_hand, make(self.seed, self.generation))):
            yield from varied(scenario, count or self.delays)


def _fill(self, number: int) -> None:
    """An outcome is created wherever none stands."""


def _see_no_growth(self, scan: ScanResult, *arguments):
    """That a copy grows says nothing: it is waited for no longer than what is broken."""
    known = self.incomplete._since
    new = _see(self, scan, *arguments)
    if scan.copied and self.incomplete.since is not None and known:
        self.incomplete._since = known
    return new


def _wait_for_the_next_look(self, plan, now: float) -> None:
    """A member that does not see the pin yet looks for it when its next look is due."""
    requested = self.schedule._scans.requested
    _begin(self, plan, now)
    self.schedule._scans.requested = requested


def _without_a_last_look(_, when: float, now: float, **__) -> bool:
    """Return what was not seen until now is not looked for once more."""
    return now >= when


def _once_lost_is_lost(alike, history, min_workers, checkpoint, task):
    """If nodes that never lost a checkpoint are not enough, all that did are taken back in, however often it was."""
    lost = set() if checkpoint is None else eligibility._losses_with(checkpoint, history, task).keys()
    clean = [each for each in alike if each.node not in lost]
    return clean if sum(len(each.slots) for each in clean) >= min_workers else list(alike)


def _take_part_without_what_was_found(self, now: float, *, answered: bool) -> None:
    """A member that gave up a checkpoint says only that it does not see it."""
    seen = self.state.tracker
    given_up, seen.lost.given_up = seen.given_up, {}
    _advance(self, now, answered=answered)
    seen.lost.given_up = given_up


def _only_attempts(checkpoint, failures, view, rules):
    """Only attempts are witnesses of damage: scans of nodes that are not listed any more say nothing."""
    ready = [replace(each, checkpoints=replace(each.checkpoints, damaged=())) for each in view.nodes.ready]
    return _verdict(checkpoint, failures, replace(view, nodes=replace(view.nodes, ready=ready)), rules)


_ENDS_TOO_SOON = ("daemons end for a reason", "all is settled", "all end", "whole checkpoints succeed")
_NO_GROWTH = Mutation(
    "copies are not waited for as long as they grow",
    ((checkpoint_tracker.CheckpointTracker, "see", _see_no_growth),),
    _ENDS_TOO_SOON,
)

_OVERTAKES = Mutation(
    "with every_steps what is held overtakes what is being pinned",
    ((decide, "_may_be_pinned_soon", lambda *_: False),),
    ("passed over is not evaluated",),
)


_ALL_OR_NONE = Mutation(
    "nodes that lost a checkpoint are all left out, or none",
    ((group_formation, "choose_nodes", _once_lost_is_lost),),
    ("who fails it is left out",),
)

_later = discovery_order._later


def _later_than_a_pin(this, known, *, in_directory: bool):
    return () if in_directory else _later(this, known, in_directory=False)


_ROLLBACK = Mutation(
    "whatever lies there and is found later is taken for newer",
    ((discovery_order, "_later", _later_than_a_pin),),
    ("skipped is passed over",),
)

_TWICE = "with every_steps a second one of a multiple was planned, as the pin of an older one took longer"
_SET_BACK = (
    "an older one that came late was superseded, which looks like training that was set back; the referee objected"
)

_COPIED = copied_for_long_after_it_was_deleted()

REGRESSIONS = (
    Regression(
        49144,
        "of a group that another one replaced, a worker was listed again, as an old heartbeat still showed it",
        Mutation(
            "a group that was replaced is not spent",
            ((JournalState, "_retire_replaced", lambda *_: None),),
            ("one group in a life",),
        ),
        by_hand=old_heartbeat_shows_a_worker_of_a_replaced_group(),
    ),
    Regression(29208, "a run ended while another node made the pin of what this one had never seen"),
    Regression(39384, "a run ended while another node made the pin of what this one had never seen"),
    Regression(21051, "such a pin took longer than what is broken is waited for", _NO_GROWTH, by_hand=_COPIED),
    Regression(28172, "such a pin took longer than what is broken is waited for"),
    Regression(
        27884,
        "a run ended while a checkpoint that training deleted was still being copied",
        _NO_GROWTH,
        by_hand=_COPIED,
    ),
    Regression(26720, "a daemon whose state directory was deleted was not started again"),
    Regression(28096, "found while the simulator was extended; what it found is not on record"),
    Regression(
        5416,
        "a node that was behind wrote an outcome again that had been lost",
        Mutation("gaps are filled", ((journal.Journal, "_reject_gap", _fill),), ("journal is linear",)),
        generation=2,
    ),
    Regression(1509, "a run ended here while another node could read what this one could not", generation=2),
    Regression(6174, "a pin of what training had deleted was taken for the newest checkpoint"),
    Regression(
        4852,
        "a member that found a checkpoint before its pin failed the plan without looking for the pin",
        Mutation(
            "a member does not look for the pin of a plan",
            (
                (PlanRunner, "begin", _wait_for_the_next_look),
                (StorageSchedule, "has_scanned_since", _without_a_last_look),
            ),
            ("attempts are bounded",),
        ),
        generation=2,
    ),
    Regression(
        12837,
        "no bug: the referee counted two daemons under one name as two nodes, which a group of two could have",
        generation=2,
    ),
    Regression(3284, _TWICE, _OVERTAKES, generation=2),
    Regression(6784, _TWICE, _OVERTAKES, generation=2),
    Regression(7871, _TWICE, _OVERTAKES, generation=2),
    Regression(9404, _TWICE, _OVERTAKES, generation=2),
    Regression(5350, _SET_BACK, generation=2),
    Regression(11943, _SET_BACK, generation=2),
    Regression(
        572, "the referee counted a second daemon that had ended, though its namesake is a chief now", generation=2
    ),
    Regression(4611, "an older one that was read later superseded the newest checkpoint", _ROLLBACK, generation=2),
    Regression(
        8704,
        "no bug: two of a kind had different values, and the referee waited for a third node that could not decide",
        generation=2,
    ),
    Regression(
        11954,
        "no bug: it was back for a moment that no scan met, and the referee counted from then since when it was gone",
        generation=2,
    ),
    Regression(
        13731,
        "no bug: a daemon that was told to stop ended when all faults were over, and nobody started it again",
        generation=2,
    ),
    Regression(
        14399,
        "with start=new a step of what was there before the start ended the run",
        generation=2,
    ),
    Regression(
        14607,
        "no bug: the model's checkpoints had no size, so one more was pinned than the referee took for the most",
        generation=2,
    ),
    Regression(
        14937,
        "no bug: the referee stumbled over a former journal in which a plan had been purged, and its outcome not",
        generation=2,
    ),
    Regression(
        15686,
        "no bug: it was back for a moment that no scan of that daemon met, though one of another did",
        generation=2,
    ),
    Regression(
        17148,
        "no bug: the storage came back without an outcome, and the referee forgot a plan that had been purged",
        generation=2,
    ),
    Regression(
        20343,
        "a member that had found the pin broken said that it had not seen it, so nobody called the checkpoint corrupt",
        Mutation(
            "a member does not tell that it found the pin broken",
            (
                (PlanRunner, "advance", _take_part_without_what_was_found),
                (checkpoint_tracker.CheckpointTracker, "broken_pin", lambda *_: None),
            ),
            ("failures tell what was found",),
        ),
        generation=2,
    ),
    Regression(
        22325,
        "a node that read other bits was taken back in each time, as one of the others had lost the checkpoint once",
        generation=2,
    ),
    Regression(
        21447,
        "no bug: one of a newer release published, too; the others cannot read its heartbeats, nor had it written more",
        generation=2,
    ),
    Regression(
        51339,
        "no bug: an outcome was purged while a daemon was stopped between its last scan and its writing of that name",
        generation=2,
    ),
    Regression(
        51982,
        "no bug: of two with the same profile one shows it when the task is tried, so they could form no group",
        generation=2,
    ),
    Regression(
        24173,
        "a node gave up alone what another found whole: that one's heartbeat could not be read for a while",
        Mutation(
            "who cannot be heard is not there",
            ((Liveness, "unheard", lambda *_: []),),
            ("corrupt is not readable",),
        ),
        generation=2,
    ),
    Regression(
        23209,
        "a node that could not read the checkpoint was taken back in each time, as each of the others had lost it once",
        _ALL_OR_NONE,
        generation=2,
    ),
    Regression(
        23885,
        "no bug: the storage came back without an outcome, and the referee forgot an evaluation that had been purged",
        generation=2,
    ),
    Regression(
        25143,
        "a node that read other bits was taken back in each time, as it had made another one scan odd before",
        _ALL_OR_NONE,
        generation=2,
    ),
    Regression(
        46259,
        "no bug: all of the newer release had ended with the run, and one of the older, which stands by, was left",
        generation=2,
    ),
    Regression(
        14163,
        "with start=new a step ended the run though a plan had said since that it was there before the start",
        generation=2,
    ),
    Regression(
        29793,
        "the newer of two contents under one name ended as superseded by the older, once training had deleted it",
        generation=2,
    ),
    Regression(
        37514,
        "a pin was let go though another task needed it, as the heartbeat of its node could not be read for a while",
        generation=2,
    ),
    Regression(
        30032,
        "no bug: a pin appeared after the scan by which the first plan was made, and before that plan stood",
        generation=2,
    ),
    Regression(
        33443,
        "no bug: a plan listed a node that had just ended its run, as training went on behind the last step",
        generation=2,
    ),
    Regression(
        34710,
        "no bug: daemons ended while one of a newer release copied what they could not read",
        generation=2,
    ),
    Regression(
        37715,
        "no bug: a second training began when all daemons had said that the run is over, and before they ended",
        generation=2,
    ),
    Regression(
        39274,
        "no bug: a node that found a checkpoint corrupt was alone for a while, as the others took in a new group",
        generation=2,
    ),
    Regression(
        44966,
        "no bug: a daemon of a newer release gave way to one of its name that stands by, and none was left that reads",
        generation=2,
    ),
    Regression(
        49330,
        "most nodes could not read a pin that one of another profile found whole: nobody evaluated it or gave it up",
        generation=2,
    ),
    Regression(
        4011,
        "no bug: storage was so slow that a daemon said that the run is over before it saw the last step saved again",
        generation=2,
    ),
    Regression(
        4912,
        "no bug: the only node that could read a checkpoint could not read the journal of an upgraded node any more",
        generation=2,
    ),
    Regression(
        5343,
        "no bug: a cache became stale when a daemon had seen the marker of training, and hid what was saved before it",
        generation=2,
    ),
    Regression(
        1001912,
        "no bug: old names were purged while a daemon, which had read their records, moved them into a segment",
        generation=2,
    ),
    Regression(
        1002166,
        "the last checkpoint, damaged for one node and deleted by training, was skipped by every_steps, undisputed",
        generation=2,
    ),
    Regression(
        1002456,
        "no bug: upgraded nodes decided, since the larger part of the nodes could not read the journal any more",
        generation=2,
    ),
    Regression(
        17309,
        "no bug: run.json was absent for a node for run_lost_seconds, before there was any record: it joined anew",
        generation=2,
    ),
    Regression(
        18839,
        "no bug: run.json was absent for a node for run_lost_seconds, before there was any record: it joined anew",
        generation=2,
    ),
    Regression(
        18322,
        "a node with a damaged pin, and no room for another one, said that the checkpoint had vanished",
        Mutation(
            "a broken pin tells nothing while files of its name lie there",
            ((checkpoint_tracker.CheckpointTracker, "broken_pin", lambda *_: None),),
            ("failures tell what was found",),
        ),
        generation=2,
    ),
    Regression(
        20538,
        "no bug: a cache remembered the empty place of a mount that was away, though no mount keeps a cache so long",
        generation=2,
    ),
    Regression(
        24290,
        "no bug: the only node had become the chief, and the referee counted a second daemon that had ended",
        generation=2,
    ),
    Regression(
        24535,
        "no bug: a checkpoint was saved and copied when the last step was evaluated, too late for daemons to see it",
        generation=2,
    ),
    Regression(
        25671,
        "a node tried a damaged checkpoint eight times: the other one had given it up, and so was never listed for it",
        Mutation(
            "only attempts are witnesses of damage",
            ((settlements, "verdict_of_failures", _only_attempts),),
            ("attempts are bounded",),
        ),
        generation=2,
    ),
    Regression(
        40097,
        "a pin of what a node never saw came behind a newer one, which that node had seen, lost and met again as a pin",
        generation=2,
    ),
    Regression(
        43709,
        "without standbys, a node that came back listed the group that its nodes were just ending to take it in",
        Mutation(
            "a group that ends is listed",
            ((group_formation, "_is_ending", lambda *_: False),),
            ("attempts are bounded",),
        ),
        generation=2,
    ),
    Regression(
        44107,
        "no bug: the only node that was left to evaluate could not read a pin for good, and said so when it ended",
        generation=2,
    ),
    Regression(
        7843,
        "most nodes gave up a damaged checkpoint; one of another task named it for ever, though it failed there, too",
        Mutation(
            "damage counts by task",
            ((settlements, "_was_damaged_elsewhere", lambda *_: False),),
            ("all is settled",),
        ),
        generation=2,
    ),
    Regression(
        29474,
        "no bug: one of two pins was of a newer release, and the referee asked a node that cannot read it to skip one",
        generation=2,
    ),
    Regression(
        103,
        "a node that had joined gave up the group while another one downloaded the checkpoint",
        Mutation(
            "a download of another node is joining time",
            ((known_nodes.KnownNodes, "lacks_pin", lambda *_: False),),
            ("attempts are bounded",),
        ),
        generation=3,
    ),
    Regression(
        21108,
        "only one node had a checkpoint that training deleted; the others ended; it waited for min_workers for ever",
        Mutation(
            "nobody waits for what is not found here",
            ((CheckpointVerdicts, "never_settled", lambda *_: set()),),
            ("all end",),
        ),
        generation=3,
    ),
    Regression(
        21015,
        "no bug: what every_steps passes over was skipped while only a stopped daemon had it on its disk",
        generation=3,
    ),
)
