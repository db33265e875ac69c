"""Build the status of a daemon for people from its state."""

from dataclasses import replace
from typing import Final

from sidecar.daemon.state import DaemonState
from sidecar.policy.eligibility import count_by_reason, left_out
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.records import FinishedSet, Member
from sidecar.publishing.status import (
    CheckpointsStatus,
    DiskUsage,
    EvaluationStatus,
    MemberProgress,
    Newest,
    NodesStatus,
    NodeSummary,
    Status,
    UnreadableEntries,
    WorkerStatus,
)

_SENTENCES_SHOWN: Final = 20


def report_status(state: DaemonState, now: float, unready: str | None, workers: tuple[WorkerStatus, ...]) -> Status:
    """Return the status of a daemon. `unready`: why this node is not ready; None if it is ready."""
    identity, tracker, history, statistics = state.identity, state.tracker, state.history, state.statistics
    waiting = tracker.choice(history, state.task).evaluate
    reasons = left_out(state.nodes.ready(now), history, identity.node, state.groups.min_workers)
    unknown = {**tracker.failed, **tracker.unknown}
    alive = state.nodes.alive(now)
    entries = *(f"{name}: {unknown[name]}" for name in sorted(unknown)), *state.nodes.unreadable_files
    sentences = *entries, *statistics.journal_problems
    return Status(
        identity=identity,
        state=state.shown_state,
        publisher=state.publishes(now),
        unready=unready,
        hint=tracker.empty.hint,
        journal_read=state.caught_up,
        checkpoints=CheckpointsStatus(
            pending=len(waiting),
            oldest_pending=min((tracker.found[checkpoint.key].written_at for checkpoint in waiting), default=None),
            newest=_newest(state),
            unseen=statistics.gaps.count,
        ),
        evaluation=EvaluationStatus(
            plan=history.open.plan if history.open is not None else None,
            group_size=len(statistics.group),
            groups_formed=statistics.groups_formed,
            progress=_progress(state, workers),
            finished=_finished(state),
        ),
        nodes=NodesStatus(
            alive=tuple(map(_summary, alive)),
            members=_count_states(alive),
            left_out={node: left.why for node, left in reasons.items()},
            left_out_reasons=count_by_reason(reasons),
        ),
        workers=workers,
        disk=DiskUsage(
            pins_bytes=statistics.pins_bytes,
            saves_bytes=statistics.saves_bytes,
            exports_bytes=statistics.exports.bytes,
            failing_exports=len(statistics.exports.problems),
        ),
        unreadable=UnreadableEntries(sentences[:_SENTENCES_SHOWN], len(sentences)),
        journal_problems=len(statistics.journal_problems),
        ended=state.shutdown.ended,
    )


def _newest(state: DaemonState) -> Newest | None:
    """Return the checkpoint discovered last. If it has no step, return it with its number in the journal."""
    newest, ordinals = state.tracker.newest, state.history.ordinals
    if newest is None or newest.step is not None or not state.caught_up:
        return newest
    waiting = state.tracker.relevant(state.history, state.task)
    unnumbered = sum(checkpoint.step is None and checkpoint.key not in ordinals for checkpoint in waiting)
    number = ordinals.get((newest.checkpoint, newest.digest), len(ordinals) + max(1, unnumbered))
    return replace(newest, step=number, step_source="order")


def _progress(state: DaemonState, workers: tuple[WorkerStatus, ...]) -> tuple[MemberProgress, ...]:
    """Return the progress of each rank of the open plan.

    Of this node's own workers it is the present one, of others that of their newest heartbeats.
    """
    plan = state.history.open
    if plan is None:
        return ()
    known: dict[str, tuple[str | None, int | None, int | None, bool | None]]
    known = {
        worker.worker: (worker.state, worker.batches, worker.total_batches, worker.waits or None) for worker in workers
    }
    for node in {member.node for member in plan.members or ()} - {state.identity.node}:
        heartbeat = state.nodes.liveness.heartbeat(node)
        if heartbeat is not None and heartbeat.journal.plan == plan.plan:
            known |= {each.worker: (each.phase, each.batches, each.total, each.waits) for each in heartbeat.doing or ()}

    def progress(member: Member) -> MemberProgress:
        phase, batches, total, waits = known.get(member.worker, (None, None, None, None))
        return MemberProgress(
            rank=member.rank,
            node=member.node,
            worker=member.worker,
            phase=phase,
            batches=batches,
            total=total,
            waits=waits,
        )

    return tuple(map(progress, plan.members or ()))


def _finished(state: DaemonState) -> tuple[FinishedSet, ...]:
    """Return the eval sets of the open plan that its nodes report as finished, each once."""
    plan = state.history.open
    nodes = dict.fromkeys(member.node for member in plan.members or ()) if plan is not None else ()
    heartbeats = filter(None, map(state.nodes.liveness.heartbeat, nodes))
    found = (each for heartbeat in heartbeats for each in heartbeat.finished_in(plan.plan if plan else None))
    return tuple({each.eval_set: each for each in found}.values())


def _summary(heartbeat: Heartbeat) -> NodeSummary:
    return NodeSummary(
        node=heartbeat.node,
        role=heartbeat.role,
        role_source=heartbeat.about.role_source,
        state=heartbeat.state,
        version=heartbeat.about.version,
        active=heartbeat.active,
        standby=heartbeat.standby,
        page_url=heartbeat.about.page_url,
    )


def _count_states(alive: list[Heartbeat]) -> dict[str, int]:
    """Return how many live nodes are in each state; chiefs count as a state of their own."""
    counts: dict[str, int] = {}
    for heartbeat in alive:
        state = "chief" if heartbeat.role == "chief" else heartbeat.state
        counts[state] = counts.get(state, 0) + 1
    return counts
