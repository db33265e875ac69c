"""The durations in a result: what workers measured, and what only the daemon knows."""

from sidecar.daemon.plan_times import PlanTimes


def test_the_daemon_adds_what_only_it_knows():
    """Detection, agreement, joining and writing come from the daemon; the rest comes from the workers."""
    times = PlanTimes(agree_seconds=0.25, joining_since=1.0, joined_at=3.0, done_at=5.0)
    assert times.durations({"evaluate": 0.5}, 0.125, 5.5) == {
        "detect": 0.125,
        "agree": 0.25,
        "join": 2.0,
        "evaluate": 0.5,
        "publish": 0.5,
    }


def test_a_warm_group_that_another_node_proposed():
    """Nothing joined, nothing was agreed here, and nobody watched the checkpoint appear."""
    assert PlanTimes(done_at=5.0).durations({}, None, 5.0) == {"join": 0.0, "publish": 0.0}
