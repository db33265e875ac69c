"""Check a file in a process of its own, whose death is not the file's fault."""

import os
import signal

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]  # of Keras, while it saves


def test_a_child_that_is_killed_is_not_the_files_fault():
    """By somebody, or for want of memory; what it does to itself is."""
    from sidecar.evaluation import isolation
    from sidecar.evaluation.failures import EvaluationError

    ends = {signal.SIGKILL: "out_of_memory", signal.SIGSEGV: "corrupt", signal.SIGABRT: "corrupt"}
    for number, kind in ends.items():
        with pytest.raises(EvaluationError) as caught:
            isolation.check_isolated("m.h5", lambda number=number: os.kill(os.getpid(), number), cpu_seconds=5)
        assert caught.value.kind == kind
    with pytest.raises(EvaluationError, match="CPU time limit") as caught:
        isolation.check_isolated("m.h5", lambda: sum(iter(int, 1)), cpu_seconds=1)
    assert caught.value.kind == "corrupt"
    isolation.check_isolated("m.h5", lambda: None, cpu_seconds=1)
