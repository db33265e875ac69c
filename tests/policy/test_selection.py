"""Which of the waiting checkpoints are evaluated; what a step means, and what may still change."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy.views import outcome, plan

from sidecar.coordination.journal_state import JournalState
from sidecar.policy.selection import Selection
from sidecar.protocol.records import Checkpoint, Settlement

HUNDRED = Selection(every_steps=100)
LATEST = Selection("latest")


def saved(step, *, pinned=True, name=None):
    name = name or f"ckpt-{step}"
    return Checkpoint(
        name=name, digest=f"digest of {name}", step=step, format="tf_object", pin=f"pins/{name}" if pinned else None
    )


def after(*checkpoints, fails=()):
    """The journal once these were tried, one after the other; those in `fails` failed."""
    history = JournalState()
    for number, each in enumerate(checkpoints, 1):
        history.apply(plan(number, each, (f"n1.i.{number}",)))
        history.apply(outcome(number, "stalled" if each in fails else None))
    return history


def requeue(history, *checkpoints):
    settles = tuple(
        Settlement(name=each.name, digest=each.digest, step=each.step, verdict="requeued", reason="by you")
        for each in checkpoints
    )
    history.apply(plan(history.through + 1, None, settles=settles))
    return history


def steps(checkpoints):
    return [each.step for each in checkpoints]


def chosen(selection, waiting, history=None, **more):
    """Steps to be evaluated, and steps that are settled as skipped."""
    choice = selection.choose(waiting, history or JournalState(), **more)
    assert {each.key for each in choice.settled} <= choice.passed.keys()
    return steps(choice.evaluate), steps(choice.settled)


@pytest.mark.parametrize(
    ("there", "evaluated", "skipped"),
    [
        ([90, 190, 290], [90, 190, 290], []),
        ([100, 200, 300], [100, 200, 300], []),
        ([10, 20, 30, 110, 120, 200, 250], [10, 110, 200], [20, 30, 120]),
        ([50, 500, 550, 560], [50, 500], [550]),
        ([None, 10, None, 20, 30], [None, 10, None], [20]),
        ([910, 920, 300, 320, 410, 420], [910, 300, 410], [920, 320]),
        ([910, 905, 907, 908], [910, 905], [907]),
        ([100, 100, 150, 160], [100, 100], [150]),
        ([0, 99], [0], []),
        ([], [], []),
    ],
    ids=[
        *("just before each multiple", "at each multiple", "the first of each", "a multiple may be passed over"),
        *(
            "unknown steps count for themselves",
            "set back",
            "set back a little",
            "set back to the same",
            "the last may be the result",
            "none",
        ),
    ],
)
def test_the_first_that_reaches_a_new_multiple_is_evaluated(there, evaluated, skipped):
    """Wherever in the interval it lies; what comes before the next one is skipped, but for the very last."""
    waiting = [saved(step, name=f"{place}-{step}") for place, step in enumerate(there)]
    assert chosen(HUNDRED, waiting) == (evaluated, skipped)
    assert chosen(Selection(), waiting) == (there, [])


@pytest.mark.parametrize(
    ("history", "reached"),
    [
        (after(saved(300)), 300),
        (after(saved(300), fails=[saved(300)]), 300),
        (after(saved(300), saved(100)), 100),
        (after(saved(100), saved(300), saved(100), fails=[saved(100)]), 300),
        (requeue(after(saved(100), saved(300)), saved(100)), 300),
        (after(saved(300), saved(None)), 300),
        (JournalState(), None),
    ],
    ids=[
        *("evaluated last", "tried and failed", "set back since", "a later attempt at an older one", "asked for again"),
        *("a step that nobody knows", "nothing yet"),
    ],
)
def test_the_journal_says_where_evaluation_stands(history, reached):
    """So a restart, or another node, goes on where the last one stopped: what is found is compared with that."""
    assert history.last_planned_step == reached
    found = [saved(302), saved(400), saved(410)]
    assert chosen(HUNDRED, found, history)[0] == ([400] if reached == 300 else [302, 400])


def test_the_last_one_is_held_until_a_newer_one_comes():
    """It may be the result of the run; then it is evaluated, whatever its step."""
    waiting = [saved(195, pinned=False)]
    choice = HUNDRED.choose(waiting, after(saved(190)))
    assert (choice.evaluate, choice.settled) == ((), ())
    assert choice.hold == {saved(195).key}
    assert chosen(HUNDRED, waiting, after(saved(190)), over=True) == ([195], [])
    assert chosen(HUNDRED, [*waiting, saved(199)], after(saved(190))) == ([], [195])
    assert chosen(HUNDRED, [*waiting, saved(199)], after(saved(190)), over=True) == ([199], [195])


def test_nothing_is_skipped_in_favour_of_what_may_still_vanish():
    """As long as the one that stands for the multiple is not held, those after it may have to stand in for it."""
    waiting = [saved(190, pinned=False), saved(195), saved(198), saved(199)]
    assert chosen(HUNDRED, waiting) == ([190], [])
    assert chosen(HUNDRED, waiting[1:]) == ([195], [198])
    assert chosen(HUNDRED, [saved(190), *waiting[1:]]) == ([190], [195, 198])


def test_only_what_is_to_be_evaluated_is_held():
    """And the last one."""
    waiting = [saved(step, pinned=False) for step in (190, 195, 198, 199, 200, 201)]
    assert HUNDRED.choose(waiting, JournalState()).hold == {saved(step).key for step in (190, 200, 201)}
    assert Selection().choose(waiting, JournalState()).hold == {each.key for each in waiting}


def test_with_latest_only_the_newest_is_evaluated():
    """And only the newest is held."""
    waiting = [saved(1), saved(2), saved(3)]
    assert chosen(LATEST, waiting) == ([3], [1, 2])
    assert LATEST.choose(waiting, JournalState()).hold == {saved(3).key}
    assert LATEST.choose(waiting, JournalState()).passed[saved(1).key] == "superseded by ckpt-3 (queue=latest)"


def test_with_latest_the_newest_that_is_held_stays_until_a_newer_one_is():
    """The newer one may vanish before it is."""
    waiting = [saved(1), saved(2), saved(3, pinned=False), saved(4, pinned=False)]
    choice = LATEST.choose(waiting, JournalState())
    assert (steps(choice.evaluate), steps(choice.settled)) == ([2, 3, 4], [1])
    assert choice.hold == {saved(2).key, saved(4).key}


def test_both_combine():
    """Evaluate the newest of those that reach a new multiple, and hold the last one of all."""
    both, waiting = Selection("latest", 100), [saved(step) for step in (90, 95, 110, 120, 205, 250)]
    choice = both.choose(waiting, JournalState())
    assert (steps(choice.evaluate), sorted(steps(choice.settled))) == ([205], [90, 95, 110, 120])
    assert choice.hold == {saved(205).key, saved(250).key}
    assert "every_steps" in choice.passed[saved(95).key]
    assert "queue=latest" in choice.passed[saved(90).key]
    assert chosen(both, waiting, over=True)[0] == [250]


@pytest.mark.parametrize("selection", [HUNDRED, LATEST, Selection("latest", 100)])
def test_what_a_person_asked_for_again_is_evaluated(selection):
    """Once; it does not say where the others stand."""
    history = requeue(after(saved(300)), saved(110))
    waiting = [saved(110), saved(310), saved(400)]
    assert chosen(selection, waiting, history)[0] == [110, 400]
    history.apply(plan(3, saved(110), ("n1.i.3",)))
    history.apply(outcome(3))
    assert history.last_planned_step == 300
    assert chosen(selection, waiting[1:], history)[0] == [400]
    assert not history.verdicts.requeued


@pytest.mark.parametrize("selection", [HUNDRED, LATEST, Selection("latest", 100)])
def test_what_was_evaluated_and_is_asked_for_again_is_evaluated(selection):
    """Like all that a person asked for again, and it sets nothing back."""
    history = requeue(after(saved(110), saved(300)), saved(110))
    waiting = [saved(110), saved(310), saved(400)]
    assert chosen(selection, waiting, history)[0] == [110, 400]
    history.apply(plan(4, saved(110), ("n1.i.4",)))
    history.apply(outcome(4))
    assert history.last_planned_step == 300
    assert chosen(selection, waiting[1:], history)[0] == [400]


@settings(max_examples=3 * settings().max_examples)
@given(
    st.lists(st.tuples(st.none() | st.integers(0, 1000), st.booleans()), max_size=8),
    st.none() | st.integers(0, 1000),
    st.sampled_from(["every", "latest"]),
    st.none() | st.integers(1, 300),
    st.booleans(),
)
def test_a_choice_is_sound_whatever_waits(there, before, queue, every_steps, over):
    """Each that waits is evaluated, settled or may still become either; what is evaluated can be held; order stays."""
    waiting = [saved(step, name=f"{place}-{step}", pinned=pinned) for place, (step, pinned) in enumerate(there)]
    history = JournalState() if before is None else after(saved(before, name="before"))
    choice = Selection(queue, every_steps).choose(waiting, history, over=over)
    assert [each for each in waiting if each in choice.evaluate] == list(choice.evaluate)
    assert not set(choice.settled) & set(choice.evaluate)
    assert len(choice.settled) == len(set(choice.settled))
    assert choice.hold <= {each.key for each in waiting}
    assert bool(waiting) == bool(choice.hold)
    if choice.evaluate:  # some of it is held or may be: nothing waits for what is never pinned
        assert any(each.pin is not None or each.key in choice.hold for each in choice.evaluate)
    if waiting and over:
        assert waiting[-1] in choice.evaluate
    if all(each.pin is not None for each in waiting):  # nothing is undecided but the last one
        left = [each for each in waiting if each not in choice.evaluate and each not in choice.settled]
        assert left == [] or left == waiting[-1:]
