"""Choose the saved weights and states that are removed."""

from records import make_plan

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.records import Checkpoint, Member, Outcome, Result, Value
from sidecar.retention.saves.retention import TRIES, CleanupRequest, CleanupResult, Retention, StatesRule


def plan(number):
    members = (Member(0, "n1", "w", "h:1"),)
    checkpoint = Checkpoint(name=f"ckpt-{number}", digest="d" * 64, step=number, format="tf")
    return make_plan(number, checkpoint, nonce="n", members=members, task=None)


class Follower(Retention):
    """Retention beside a journal of successes."""

    def __init__(self, keep, max_bytes=None):
        super().__init__(keep=keep, max_bytes=max_bytes)
        self.history = JournalState()

    def evaluated(self, accuracy=None):
        """Add one more successful evaluation to the journal."""
        number = self.history.through + 1
        metrics = (
            {} if accuracy is None else {"test": {"accuracy": Value(value=accuracy, hex=accuracy.hex(), goal="max")}}
        )
        result = Result(
            group="g", workers=1, examples={}, metrics=metrics, phases={}, variables="v", task="t", profile={}, saves=()
        )
        self.history.apply(plan(number))
        self.history.apply(
            Outcome(
                plan=number, run="r", nonce="n", status="succeeded", closed_by="n1", completed_at="now", result=result
            )
        )
        self.succeeded(self.history)


def folder(number):
    return plan(number).folder


def folders(*numbers):
    return tuple(folder(number) for number in numbers)


def follow(retention, accuracies, *, size=10, sizes=None):
    """Evaluations from 1 on, each tidied up after until nothing is due; what still has its weights."""
    kept = set()
    for number, accuracy in enumerate(accuracies, start=1):
        retention.evaluated(accuracy)
        kept.add(folder(number))
        while (due := retention.due(0.0)) != CleanupRequest():
            assert set(due.measure) <= kept
            kept -= set(due.thin)
            retention.done(due, CleanupResult(sizes={each: (sizes or {}).get(each, size) for each in due.measure}), 0.0)
    return [number for number in range(1, len(accuracies) + 1) if folder(number) in kept]


def test_only_the_newest_evaluations_keep_their_weights():
    """Two here; what they use is measured when they change."""
    retention = Follower(2)
    for _ in range(3):
        retention.evaluated()
    assert retention.due(0.0) == CleanupRequest((), folders(1), folders(2, 3))


def test_of_a_long_journal_the_last_failures_are_remembered():
    """A daemon that starts reads of thousands; those before were tidied up by somebody."""
    retention = Follower(1)
    for number in range(1, 100):
        retention.failed(plan(number), 0.0)
    assert retention.due(60.0).drop == folders(*range(80, 100))


def test_what_is_due_is_said_until_it_is_done():
    """Storage may fail in between, and a folder that was forgotten would stay for ever."""
    retention = Follower(1)
    retention.evaluated()
    retention.evaluated()
    due = retention.due(0.0)
    assert retention.due(1.0) == due
    retention.done(due, CleanupResult(sizes={folder(2): 5}), 0.0)
    assert retention.due(2.0) == CleanupRequest()
    assert retention.bytes == 5


def test_what_became_due_meanwhile_is_not_taken_for_done():
    """The visit that tidied knew nothing of it."""
    retention = Follower(1)
    retention.evaluated()
    due = retention.due(0.0)
    retention.evaluated()
    retention.done(due, CleanupResult(sizes={folder(1): 5}), 0.0)
    assert retention.due(0.0) == CleanupRequest((), folders(1), folders(2))
    assert retention.bytes == 0


def test_what_failed_plans_left_is_removed_when_nobody_writes_there_any_more():
    """Killed workers of other nodes may need a moment to end."""
    retention = Follower(2)
    retention.failed(plan(1), 100.0)
    retention.failed(plan(2), 130.0)
    assert retention.due(159.0) == CleanupRequest()
    assert retention.due(160.0) == CleanupRequest(folders(1))
    retention.done(retention.due(160.0), CleanupResult(sizes={}), 0.0)
    assert retention.due(200.0) == CleanupRequest(folders(2))


def test_a_restarted_daemon_looks_back_a_while():
    """A long journal is not a long list of folders to look into."""
    retention = Follower(2)
    for _ in range(100):
        retention.evaluated()
    assert retention.due(0.0).thin == folders(*range(79, 99))


def test_the_best_one_is_kept_beside_the_newest():
    """However long ago it was; once it is beaten it goes."""
    assert follow(Follower(2), [0.1, 0.9, 0.2, 0.3, 0.4, 0.5]) == [2, 5, 6]
    assert follow(Follower(2), [0.1, 0.9, 0.2, 0.3, 0.4, 0.95]) == [5, 6]
    assert follow(Follower(1), [0.9, 0.1, 0.2]) == [1, 3]
    assert follow(Follower(3), [0.1, 0.2, 0.3]) == [1, 2, 3]


def test_a_best_one_that_was_beaten_goes_though_it_is_old():
    """Also by the daemon that reads of it in a long journal: the one that saw it may have died before it tidied."""
    retention = Follower(2)
    for number in range(1, 101):
        retention.evaluated(0.9 if number == 3 else 0.95 if number == 100 else 0.1)
    assert folder(3) in retention.due(0.0).thin
    assert folder(100) not in retention.due(0.0).thin


def test_a_restarted_daemon_keeps_the_best_one():
    """It is among the first of a hundred."""
    retention = Follower(2)
    for number in range(1, 101):
        retention.evaluated(1 / number)
    due = retention.due(0.0)
    assert due.measure == folders(1, 99, 100)
    assert folder(1) not in due.thin


def test_beyond_the_bytes_the_oldest_go_first():
    """Until the others fit; the newest and the best one stay, whatever they use."""
    assert follow(Follower(4, max_bytes=30), [0.9, 0.1, 0.2, 0.3, 0.4]) == [1, 4, 5]
    assert follow(Follower(4, max_bytes=40), [0.9, 0.1, 0.2, 0.3, 0.4]) == [1, 3, 4, 5]
    assert follow(Follower(4, max_bytes=10), [0.9, 0.1, 0.2, 0.3, 0.4]) == [1, 5]
    assert follow(Follower(4, max_bytes=5), [0.1, 0.2, 0.3]) == [3]


def test_a_best_one_that_alone_uses_more_goes():
    """Else nothing could ever make it fit; it stays the one to beat."""
    large = {folder(2): 100}
    assert follow(Follower(2, max_bytes=30), [0.1, 0.9, 0.2, 0.3], sizes=large) == [3, 4]
    assert follow(Follower(2, max_bytes=30), [0.1, 0.9], sizes=large) == [2]
    assert follow(Follower(1, max_bytes=30), [0.1, 0.9, 0.2, 0.3, 0.5], sizes=large) == [5]
    assert follow(Follower(1, max_bytes=30), [0.1, 0.9, 0.2, 0.95, 0.5], sizes=large) == [4, 5]


def test_nothing_goes_for_want_of_bytes_before_all_are_measured():
    """The oldest is not to blame for what another may not use."""
    retention = Follower(2, max_bytes=15)
    retention.evaluated()
    retention.evaluated()
    assert retention.due(0.0) == CleanupRequest((), (), folders(1, 2))
    retention.done(retention.due(0.0), CleanupResult(sizes={folder(1): 10, folder(2): 10}), 0.0)
    assert retention.bytes == 20
    later = Follower(3, max_bytes=15)
    later.evaluated()
    later.evaluated()
    later.done(later.due(0.0), CleanupResult(sizes={folder(1): 10, folder(2): 10}), 0.0)
    later.evaluated()
    assert later.due(0.0) == CleanupRequest((), (), folders(1, 2, 3))
    assert retention.due(0.0) == CleanupRequest((), folders(1))
    retention.done(retention.due(0.0), CleanupResult(sizes={}), 0.0)
    assert retention.bytes == 10


def test_a_folder_that_cannot_be_tidied_is_tried_again_a_few_times():
    """A minute apart; then it is given up, which is told once, and the others were done at the first time."""
    retention = Follower(1)
    for _ in range(3):
        retention.evaluated()
    retention.failed(plan(9), -100.0)
    stays, given_up, now = {folder(2): "why", folder(9): "why"}, [], 0.0
    for tries in range(1, TRIES + 1):
        due = retention.due(now)
        assert set(due.drop + due.thin) == {folder(1), *stays} if tries == 1 else set(stays)
        given_up.append(retention.done(due, CleanupResult(sizes=dict.fromkeys(due.measure, 5), failed=stays), now))
        assert retention.due(now) == retention.due(now + 59.9) == CleanupRequest()
        now += 60.0
    assert given_up == [[]] * (TRIES - 1) + [[folder(9), folder(2)]]
    assert retention.due(now + 1e9) == CleanupRequest()
    assert retention.bytes == 5


def test_what_had_to_make_room_and_stayed_is_tried_again():
    """It is not among those that are kept meanwhile: else the next oldest would go for it."""
    retention = Follower(3, max_bytes=25)
    for _ in range(3):
        retention.evaluated()
    retention.done(retention.due(0.0), CleanupResult(sizes=dict.fromkeys(folders(1, 2, 3), 10)), 0.0)
    assert retention.due(0.0) == CleanupRequest((), folders(1))
    retention.done(retention.due(0.0), CleanupResult(sizes={}, failed={folder(1): "why"}), 0.0)
    retention.done(retention.due(1.0), CleanupResult(sizes={folder(2): 10, folder(3): 10}), 1.0)
    assert retention.due(2.0) == CleanupRequest()
    assert retention.due(60.0) == CleanupRequest((), folders(1))
    assert retention.done(retention.due(60.0), CleanupResult(), 60.0) == []
    assert retention.due(200.0) == CleanupRequest()


def test_the_saves_of_the_linked_evaluation_stay_once_it_is_known():
    """The next evaluation is compared with its predictions; before the first scan nobody knows which one it is."""
    retention = Follower(1)
    retention.retains_linked = True
    for accuracy in (0.5, 0.9, 0.1):
        retention.evaluated(accuracy)
    assert retention.due(0.0).thin == ()
    retention.link(folder(1))
    assert retention.due(0.0).thin == ()  # the best one is 2, and the newest one 3
    retention.evaluated(0.2)
    assert retention.due(0.0).thin == folders(3)
    retention.link(folder(2))
    assert set(retention.due(0.0).thin) == set(folders(3, 1))
    retention.link(folder(1))
    assert retention.due(0.0).thin == folders(3)


def test_without_that_setting_the_link_changes_nothing():
    """The best one by number stays, as always."""
    retention = Follower(1)
    for accuracy in (0.5, 0.9, 0.1):
        retention.evaluated(accuracy)
    retention.link(folder(1))
    assert retention.due(0.0).thin == folders(1)


def test_states_are_retained_for_the_newest_the_best_and_every_kth_plan():
    """Nothing is old before there are more evaluations, and the open plan keeps its folder."""
    retention = Follower(2)
    assert retention.retained_states(retention.history) is None  # without a limit
    retention.states = StatesRule(5, every=4)
    for number in range(1, 5):
        retention.evaluated(0.9 - number / 100)
    assert retention.retained_states(retention.history) is None
    for number in range(5, 31):
        retention.evaluated(0.5 - number / 100)
    retention.history.apply(plan(31))
    retained = retention.retained_states(retention.history)
    assert (retained.before, retained.every) == (26, 4)
    kept = [number for number in range(1, 31) if not retained.is_old(folder(number).split("/")[1], number)]
    assert kept == [*range(1, 11), 12, 16, 20, 24, *range(26, 31)]
    assert folder(31).split("/")[1] in retained.checkpoints


def test_states_are_removed_only_once_it_is_known_what_the_link_leads_to():
    """The evaluation behind `exports/best` is compared with the next one."""
    retention = Follower(2)
    retention.retains_linked, retention.states = True, StatesRule(2)
    for _ in range(20):
        retention.evaluated()
    assert retention.retained_states(retention.history) is None
    retention.link(folder(3))
    retained = retention.retained_states(retention.history)
    kept = [number for number in range(1, 21) if not retained.is_old(folder(number).split("/")[1], number)]
    assert kept == [3, 19, 20]
