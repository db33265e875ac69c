"""`sidecar eval` refuses a chief and a missing checkpoint before it starts a worker process."""

import pytest

from sidecar.commands.evaluate import evaluate
from sidecar.commands.named_checkpoint import find_checkpoint
from sidecar.errors import SettingsError

FLAGS = {"config": None, "task": "task.py:task", "framework": "python", "checkpoint_pattern": "model-*.json"}


@pytest.mark.parametrize(
    ("name", "role", "told"), [("model-1.json", "chief", "is the chief"), ("model-2.json", "worker", "model-2.json")]
)
def test_neither_a_chief_nor_a_missing_checkpoint_is_evaluated(here, name, role, told):
    """One sentence says why, and nothing is written."""
    (here / "ckpts").mkdir()
    (here / "ckpts" / "model-1.json").write_text("{}")
    (here / "task.py").write_text("task = None\n")
    given = FLAGS | {"checkpoint_dir": here / "ckpts", "role": role}
    settings, path = find_checkpoint(given, [here / "ckpts" / name], print)
    with pytest.raises(SettingsError, match=told):
        evaluate(settings, {}, path, save_dir=None, warn=print)
    assert [entry.name for entry in (here / "ckpts").iterdir()] == ["model-1.json"]
