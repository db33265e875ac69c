"""Advise on the version of Keras that saved a checkpoint."""

from typing import Final

import pytest

TASK_WORDS: Final = ("Task(", "build_model", "sidecar.toml", "worker_env")


@pytest.mark.tensorflow
@pytest.mark.parametrize(("saved_by", "model_of"), [(2, 3), (3, 2)])
def test_advice_on_the_version_of_keras(saved_by, model_of):
    """The variable is that of the program, not of a worker."""
    from sidecar.evaluation.backends.tensorflow.saved_by import advice

    told = advice(saved_by, model_of=model_of)
    assert not any(word in told.for_model for word in TASK_WORDS)
    assert "TF_USE_LEGACY_KERAS" in told.for_model
