"""Give workers of PyTorch their environment."""

from daemon.workers.environments import made


def test_torch_keeps_freed_memory_and_lets_threads_sleep():
    """Both make an evaluation faster; a user who sets them otherwise knows why."""
    environment = made(framework="torch")
    assert int(environment["MALLOC_MMAP_THRESHOLD_"]) == int(environment["MALLOC_TRIM_THRESHOLD_"]) == 2**30
    assert int(environment["GOMP_SPINCOUNT"]) > 0
    assert made({"GOMP_SPINCOUNT": "1"}, framework="torch")["GOMP_SPINCOUNT"] == "1"
