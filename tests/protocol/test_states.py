"""States that are stored and compared as words."""

import json

from sidecar.protocol.states import (
    FAILURE_CLASSES,
    GROUP_PHASES,
    SECONDARY_KINDS,
    FailureKind,
    NodeState,
    OutcomeStatus,
    PhaseBound,
    Verdict,
    WorkerPhase,
)


def test_json_holds_the_words_of_earlier_releases():
    """As values and as keys."""
    assert json.dumps([*NodeState]) == '["starting", "ready", "draining", "left"]'
    assert json.dumps([*OutcomeStatus]) == '["succeeded", "failed"]'
    assert json.dumps([*Verdict]) == '["skipped", "vanished", "corrupt", "failed", "requeued"]'
    assert json.dumps({FailureKind.TASK_ERROR: 1}) == '{"task_error": 1}'


def test_every_kind_of_failure_has_a_class():
    """Under the enum's members and under plain words, since records are read with words."""
    assert list(FAILURE_CLASSES) == list(FailureKind)
    assert FAILURE_CLASSES["crashed"] == "corrupt"
    assert set(FAILURE_CLASSES) >= SECONDARY_KINDS


def test_daemons_judge_a_whole_group_while_its_ranks_meet():
    """But not while they add up large states."""
    assert {"hello", "reduce"} == GROUP_PHASES
    assert WorkerPhase.adding_up(4 << 20) is WorkerPhase.REDUCE
    assert WorkerPhase.adding_up((4 << 20) + 1) is WorkerPhase.SUM
    assert WorkerPhase.SUM.bounded_by is PhaseBound.NONE
