"""Which nodes take part in the next plan, which one proposes it, and who is left out and why. PURE.

All of it follows from heartbeats and the journal, so that nodes which read the same decide alike. `policy` lists
members by it, the daemon decides by it who lets go of pins, and `sidecar status` shows who is left out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.coordination.journal_state import JournalState, blame, losers
from sidecar.records import Checkpoint, Heartbeat, Settlement

Reason = Literal["version", "task", "profile", "losses", "unreadable"]

_NAMED: Final = 3
_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a node takes no part: a reason of a closed list, and a sentence."""

    reason: Reason
    why: str


def largest_alike(workers: Sequence[Heartbeat], node: str | None = None) -> list[Heartbeat]:
    """Return the largest set of ready nodes with equal version, task and numeric profile; that of `node` among equals.

    A node that does not know its profile yet, or what a worker that joined a group has added to it, is in each
    set that it may belong to.
    """
    ready = [each for each in workers if each.state == "ready" and each.task is not None]
    kinds = dict.fromkeys((each.version, each.task, each.profile, each.joined_profile) for each in ready)
    sets = [[each for each in ready if _is_of(each, kind)] for kind in kinds]
    return max(sets, key=lambda each: (len(each), any(one.node == node for one in each)), default=[])


def who_reads(workers: Sequence[Heartbeat], node: str, checkpoint: Checkpoint | None) -> list[Heartbeat]:
    """Return the nodes that may evaluate a checkpoint together: the largest set, if one of it can read the checkpoint.

    Else it is the largest set of those that can, of the same version and task: another profile computes right, too.
    """
    alike = largest_alike(workers, node)
    if checkpoint is None or any(checkpoint.folder not in each.unreadable for each in alike):
        return alike
    same = {(each.version, each.task) for each in alike}
    others = [
        each for each in workers if (each.version, each.task) in same and checkpoint.folder not in each.unreadable
    ]
    return largest_alike(others, node) or alike


def _is_of(each: Heartbeat, kind: tuple[str, str | None, str | None, str | None]) -> bool:
    version, task, profile, joined = kind
    same = each.profile in (None, profile) and each.joined_profile in (None, joined)
    return same and (each.version, each.task) == (version, task)


def turns(alike: Sequence[Heartbeat], plans: int) -> list[Heartbeat]:
    """Return the nodes in the order in which they may propose the plan after so many: those that read everything first.

    The others take turns in being the first of them: each may be the only one that can read some checkpoint.
    """
    well = [each for each in alike if not each.unreadable]
    impaired = [each for each in alike if each.unreadable]
    first = plans % len(impaired) if impaired else 0
    return [*well, *impaired[first:], *impaired[:first]]


def may_release(alike: Sequence[Heartbeat], node: str) -> bool:
    """Whether a node may let go of pins: it could propose, and no other reads more than it does."""
    own = next((each for each in alike if each.node == node), None)
    return own is not None and (not own.unreadable or all(each.unreadable for each in alike))


def members_for(
    alike: Sequence[Heartbeat], history: JournalState, min_workers: int, checkpoint: Checkpoint | None, task: str | None
) -> list[Heartbeat]:
    """Return the nodes that should evaluate a checkpoint, or any: without those that would fail, if enough are left.

    If not, nodes are taken back in until they are enough: those first that only lost plans of other checkpoints, then
    those that lost this one, the fewest times first, and last those that cannot read it.
    """
    lost = Counter[str]() if checkpoint is None else _losses_with(checkpoint, history, task)

    def trouble(each: Heartbeat) -> tuple[bool, int, bool]:
        blind = checkpoint is not None and checkpoint.folder in each.unreadable
        return blind, lost[each.node], history.is_left_out(each.node, each.incarnation)

    for most in sorted({trouble(each) for each in alike}):
        left = [each for each in alike if trouble(each) <= most]
        if sum(bool(slot.worker or slot.standby) for each in left for slot in each.slots) >= min_workers:
            return left
    return list(alike)


def _losses_with(checkpoint: Checkpoint, history: JournalState, task: str | None) -> Counter[str]:
    """How often nodes failed with it. What the task raised counts for that task; a node that cannot, for all."""
    by_task = history.failures.get(checkpoint.key, {})
    failures = [each for of, all_ in by_task.items() for each in all_ if of == task or blame(each) != "checkpoint"]
    return Counter(node for outcome in failures for node in losers(outcome))


def disputed(settlement: Settlement, node: str, workers: Sequence[Heartbeat], *, unheard: bool = False) -> bool:
    """Whether another node finds whole what this one gave up, or may, as it cannot name all that it finds.

    What is corrupt has no digest of its own, so it is compared by name. `unheard`: some node cannot be heard now.
    """
    if settlement.verdict not in ("vanished", "corrupt"):
        return False
    others = [each for each in workers if each.node != node]
    return unheard or any(each.sees_more or _sees(each, settlement) for each in others)


def seen_elsewhere(settlement: Settlement, node: str, workers: Sequence[Heartbeat]) -> bool:
    """Whether another node says that it finds it whole."""
    return any(_sees(each, settlement) for each in workers if each.node != node)


def _sees(each: Heartbeat, settlement: Settlement) -> bool:
    folder = Checkpoint(settlement.name, settlement.digest, None, "").folder
    if settlement.verdict == "corrupt":
        name = folder.rpartition("@")[0]
        return any(seen.rpartition("@")[0] == name for seen in each.sees)
    return folder in each.sees


def left_out(
    workers: Sequence[Heartbeat], history: JournalState, node: str | None, min_workers: int
) -> dict[str, LeftOut]:
    """Return the ready nodes that take no part, or not in everything, and why."""
    alike = largest_alike(workers, node)
    if not alike:
        return {}
    there = {each.node for each in alike}
    some = members_for(alike, history, min_workers, None, None)
    found = {}
    for each in workers:
        if each.state != "ready" or each.task is None:
            continue
        if each.node not in there:
            found[each.node] = _difference(each, alike)
        elif each not in some:
            count = history.losses[each.node, each.incarnation].count
            lost = "the last plan" if count == 1 else f"{count} plans in a row"
            found[each.node] = LeftOut("losses", f"it lost {lost}: the next goes without it")
        elif each.unreadable:
            found[each.node] = LeftOut("unreadable", f"it cannot read {_some(each.unreadable)}")
    return found


def _difference(each: Heartbeat, alike: Sequence[Heartbeat]) -> LeftOut:
    version, task = alike[0].version, alike[0].task or ""
    if each.version != version:
        return LeftOut("version", f"it runs version {each.version}, most nodes {version}")
    if each.task != task:
        return LeftOut("task", f"it runs other code of the task ({(each.task or '')[:_DIGITS]}, most {task[:_DIGITS]})")
    known = next((_profile(other) for other in alike if _profile(other)), "")
    told = f"{_profile(each)}, most {known}"
    return LeftOut("profile", f"it computes with other versions, devices or settings (numeric profile {told})")


def _profile(each: Heartbeat) -> str:
    return "+".join(digest for digest in (each.profile, each.joined_profile) if digest is not None)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def counts(found: dict[str, LeftOut]) -> dict[str, int]:
    """How many nodes are left out for each reason."""
    return dict(Counter(each.reason for each in found.values()))
