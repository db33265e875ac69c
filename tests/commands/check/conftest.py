"""Try out a task in place of a worker process."""

import pytest

from sidecar.commands.check import trial
from sidecar.protocol.messages import Done, Joined, Ready
from sidecar.settings import Settings

COSTS = {"weights_bytes": 2 * 10**9, "memory_bytes": 812_300_000, "gpu_bytes": 3 * 10**9}


@pytest.fixture
def try_task(place, catalog, monkeypatch):
    """Tries a task whose worker does for each checkpoint what the function does; returns the findings."""

    def newest():
        found = catalog.scan().found
        return found[-1] if found else None

    def run(evaluate, newest=newest, **given):
        settings = Settings(checkpoint_dir=place, task="my_eval.py:task", framework="python", **given)

        def evaluated(_settings, checkpoint, _path, _make_workers, seen):
            for event in (Ready("python", "3"), Joined("g", "digest", {}, ("test",))):
                seen.note(event)
            result = evaluate(checkpoint, seen)
            if result is not None:
                seen.note(Done(plan=1, rank=0, result=result, traces=1, builds=1, **COSTS))
            return result

        monkeypatch.setattr(trial, "_evaluate", evaluated)

        return list(trial.try_task(settings, None, newest))

    return run
