"""Count events for people."""

from records import A, B, failure, fold, make_plan, settlement_of, success

from sidecar.daemon.statistics import Statistics


def test_a_group_is_counted_when_it_is_new():
    """Count none that the journal already had when the daemon started."""
    found = Statistics()
    found.note_group(make_plan(1, workers=("n1.i.1",)), live=False)
    assert (found.groups_formed, found.group) == (0, ("n1.i.1",))
    for number, workers in enumerate((("n1.i.1",), ("n1.i.1", "n2.i.1"), ("n1.i.1", "n2.i.1"), ("n1.i.2",)), 2):
        found.note_group(make_plan(number, workers=workers), live=True)
    assert (found.groups_formed, found.group) == (2, ("n1.i.2",))


def test_a_plan_without_workers_has_no_group():
    """Forget the group that was there before."""
    found = Statistics(group=("n1.i.1",))
    found.note_group(None, live=False)
    assert found.group == ()


def test_names_of_a_record_end_gaps():
    """Tell the gaps which names the journal settles, and which it only plans."""
    noted = []

    class Gaps:
        def journaled(self, name, _, *, settled):
            noted.append((name, settled))

    found = Statistics(gaps=Gaps())
    plan = make_plan(1, A, settles=(settlement_of(B, "skipped"),))
    history = fold()
    found.note_names(plan, history.apply(plan), lambda _: True)
    found.note_names(ended := failure(1), history.apply(ended), lambda _: True)
    again = make_plan(2, A)
    history.apply(again)
    found.note_names(ended := success(2), history.apply(ended), lambda _: True)
    assert noted == [("ckpt-a", False), ("ckpt-b", True), ("ckpt-a", False), ("ckpt-a", True)]
