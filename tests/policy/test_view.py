"""Begin the turns of proposers with the work that waits, or with what happened last."""

import pytest

from sidecar.policy.view import TimersView


@pytest.mark.parametrize(("waiting_since", "begin_at"), [(None, 7.0), (3.0, 3.0), (9.0, 9.0)])
def test_turns_begin_with_the_work_that_waits(waiting_since, begin_at):
    """Without work they begin with the last activity."""
    assert TimersView(last_activity_at=7.0, work_waiting_since=waiting_since).turns_begin_at == begin_at
