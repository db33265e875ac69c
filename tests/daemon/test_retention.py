from sidecar.daemon.retention import Retention, Tidying, plan_folder
from sidecar.records import Checkpoint, Plan


def plan(number):
    return Plan(number, "r", "n", Checkpoint(f"ckpt-{number}", "d" * 64, number, "tf"), 1, (), (), None, "n1", "now")


def folder(number):
    return plan_folder(plan(number))


def test_only_the_newest_evaluations_keep_their_weights():
    """Two here; what they use is measured when they change."""
    retention = Retention(2)
    for number in (1, 2, 3):
        retention.succeeded(plan(number))
    assert retention.due(0.0) == Tidying((), (folder(1),), (folder(2), folder(3)))


def test_what_is_due_is_said_until_it_is_done():
    """Storage may fail in between, and a folder that was forgotten would stay for ever."""
    retention = Retention(1)
    retention.succeeded(plan(1))
    retention.succeeded(plan(2))
    due = retention.due(0.0)
    assert retention.due(1.0) == due
    retention.done(due)
    assert retention.due(2.0) == Tidying()


def test_what_became_due_meanwhile_is_not_taken_for_done():
    """The visit that tidied knew nothing of it."""
    retention = Retention(1)
    retention.succeeded(plan(1))
    due = retention.due(0.0)
    retention.succeeded(plan(2))
    retention.done(due)
    assert retention.due(0.0) == Tidying((), (folder(1),), (folder(2),))


def test_what_failed_plans_left_is_removed_when_nobody_writes_there_any_more():
    """Killed workers of other nodes may need a moment to end."""
    retention = Retention(2)
    retention.failed(plan(1), 100.0)
    retention.failed(plan(2), 130.0)
    assert retention.due(159.0) == Tidying()
    assert retention.due(160.0) == Tidying((folder(1),))
    retention.done(retention.due(160.0))
    assert retention.due(200.0) == Tidying((folder(2),))


def test_a_restarted_daemon_looks_back_a_while():
    """A long journal is not a long list of folders to look into."""
    retention = Retention(2)
    for number in range(1, 101):
        retention.succeeded(plan(number))
    assert retention.due(0.0).drop_weights == tuple(folder(number) for number in range(79, 99))
