"""Saves come faster than evaluations, and each deletes the one before: what is evaluated was held in time."""

import pytest
from integration.rapid import judge, rapid

pytestmark = pytest.mark.tensorflow

SECONDS = 5.0


@pytest.mark.nightly
@pytest.mark.parametrize("queue", ["latest", pytest.param("every", marks=pytest.mark.nightly)])
def test_no_restore_fails_beside_a_trainer_that_keeps_one_checkpoint(sidecar, tmp_path, queue):
    """With the queue of every checkpoint nothing is skipped, with that of the latest most are; the last one counts."""
    judge(rapid(sidecar, tmp_path / "ckpts", queue, SECONDS), queue, SECONDS)
