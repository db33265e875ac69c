"""Find the checkpoint that is given, and the directory that it belongs to."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from sidecar.commands.named_checkpoint import find_checkpoint

FLAGS = {"config": None, "checkpoint_dir": None, "task": "task.py:task", "framework": "torch"}


@pytest.fixture
def run(here):
    """A directory with two folders of the Trainer, and a third whose weights lie next to nothing."""
    for name in ("checkpoint-5", "checkpoint-10", "checkpoint-20"):
        (here / "run" / name).mkdir(parents=True)
        save_file({"w": np.ones(2, np.float32)}, here / "run" / name / "model.safetensors", {"format": "pt"})
        if name != "checkpoint-20":
            (here / "run" / name / "config.json").write_text('{"model_type": "tiny"}')
    return here / "run"


@pytest.mark.parametrize("words", [("checkpoint-5",), ("", "checkpoint-5")])
def test_a_given_folder_of_hugging_face_is_the_checkpoint(run, words):
    """Its directory is that of the folder above, so nothing is written into it."""
    settings, path = find_checkpoint(FLAGS, [run / words[0], *words[1:]], print)
    assert path == run / "checkpoint-5"
    assert (settings.checkpoint_dir, settings.run_dir) == (run, run / ".sidecar" / "run")


def test_a_given_folder_of_distributed_checkpoint_is_the_checkpoint(here):
    """As soon as it has its metadata."""
    (here / "run" / "step-7").mkdir(parents=True)
    (here / "run" / "step-7" / ".metadata").write_bytes(b"")
    settings, path = find_checkpoint(FLAGS, [here / "run" / "step-7"], print)
    assert (path, settings.checkpoint_dir) == (here / "run" / "step-7", here / "run")


@pytest.mark.parametrize("folder", ["checkpoint-5", "checkpoint-20"])
def test_a_directory_that_is_watched_holds_checkpoints(run, folder):
    """With a state directory a daemon watches it; without a description it is a directory with one file."""
    if folder == "checkpoint-5":
        (run / folder / ".sidecar").mkdir()
    settings, path = find_checkpoint(FLAGS | {"quiet_seconds": 0.01}, [run / folder], print)
    assert (path, settings.checkpoint_dir) == (run / folder / "model.safetensors", run / folder)
