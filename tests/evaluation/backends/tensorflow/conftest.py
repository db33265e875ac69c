"""Restore a file that does not fit into a model."""

import pytest


@pytest.fixture
def restore_refusal():
    def run(model, path):
        from sidecar.evaluation.backends.tensorflow.restore import restore
        from sidecar.evaluation.failures import EvaluationError

        with pytest.raises(EvaluationError) as caught:
            restore(model, str(path), None)
        return caught.value.kind, str(caught.value)

    return run
