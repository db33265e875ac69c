"""Try out a task in place of a worker process."""

import pytest

from sidecar.commands.check import trial
from sidecar.protocol.messages import Joined, Ready
from sidecar.settings import Settings


@pytest.fixture
def try_task(place, catalog, monkeypatch):
    """Tries a task whose worker does for each checkpoint what the function does; returns the findings."""
    settings = Settings(checkpoint_dir=place, task="my_eval.py:task", framework="python")

    def newest():
        found = catalog.scan().found
        return found[-1] if found else None

    def run(evaluate, newest=newest):
        def evaluated(_settings, checkpoint, _path, _make_workers, seen):
            for event in (Ready("python", "3"), Joined("g", "digest", {}, ("test",))):
                seen.note(event)
            return evaluate(checkpoint, seen)

        monkeypatch.setattr(trial, "_evaluate", evaluated)

        return list(trial.try_task(settings, None, newest))

    return run
