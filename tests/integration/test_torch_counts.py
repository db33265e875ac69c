"""The same data and the same weights give the same counts in TensorFlow, in PyTorch and in numpy."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytestmark = [pytest.mark.takes_turns(3), pytest.mark.seconds, pytest.mark.tensorflow, pytest.mark.torch]

WRITTEN = {"keras": "weights-5.weights.h5", "torch": "weights-5.pt"}


@pytest.fixture(scope="module")
def evaluated(sidecar, tasks, tmp_path_factory):
    """Return what `sidecar eval` prints for each framework."""
    found = {}
    for name, file in WRITTEN.items():
        folder = tmp_path_factory.mktemp(name)
        program = [sys.executable, f"{tasks}/same_in_{name}.py", str(folder / file)]
        subprocess.run(program, check=True, capture_output=True, env=sidecar.environ(folder), timeout=600)
        command = ["eval", folder / file, "--task", f"{tasks}/same_in_{name}.py:task", "--replicas", "2", "--json"]
        ended = sidecar.start(*command).wait()
        assert ended.code == 0, ended.said
        found[name] = json.loads(ended.out)
    return found


def test_counts_are_equal(evaluated):
    """Accuracy, top 2 and every cell of the confusion matrix, though kernels round differently."""
    of_keras, of_torch = (evaluated[name] for name in WRITTEN)
    assert of_torch["profile"]["framework"].startswith("torch")
    assert of_keras["profile"]["framework"].startswith("tensorflow")
    assert of_keras["examples"] == of_torch["examples"] == {"test": 1003}
    assert of_keras["classes"] == of_torch["classes"]
    for name in ("accuracy", "top_2_accuracy"):
        assert of_keras["metrics"]["test"][name] == of_torch["metrics"]["test"][name]


def test_counts_are_those_of_numpy(evaluated, tasks, monkeypatch):
    """A loop over the examples, in float64."""
    monkeypatch.syspath_prepend(str(tasks))
    from same_arrays import FIRST, SECOND, X, Y

    hidden = np.maximum(X.astype(np.float64) @ FIRST[0] + FIRST[1], 0)
    right = np.count_nonzero((hidden @ SECOND[0] + SECOND[1]).argmax(1) == Y)
    for name in WRITTEN:
        assert evaluated[name]["metrics"]["test"]["accuracy"]["value"] == right / len(Y)
