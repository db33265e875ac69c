"""As `test_rapid`, for a minute."""

import pytest
from integration.rapid import judge, rapid

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

SECONDS = 60.0


@pytest.mark.parametrize("queue", ["latest", "every"])
def test_no_restore_fails_in_a_minute_of_saves(sidecar, tmp_path, queue):
    """Six hundred saves in a minute cause no failure of a restore."""
    judge(rapid(sidecar, tmp_path / "ckpts", queue, SECONDS), queue, SECONDS)
