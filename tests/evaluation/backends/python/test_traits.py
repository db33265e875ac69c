"""Give workers of plain Python their environment."""

from sidecar.daemon.workers.environment import thread_variables


def test_numpy_computes_with_as_many_threads_as_the_settings_say():
    """Before it is imported; the user's own variables are stronger than that."""
    variables = thread_variables(3)
    assert set(variables.values()) == {"3"}
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"} <= variables.keys()
