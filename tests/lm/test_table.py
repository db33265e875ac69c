"""The task of the table `[lm]`, as a worker makes it; without transformers."""

import json
import os
import subprocess
import sys

import pytest

from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.task_loader import load
from sidecar.lm.table import NewestFolder
from sidecar.protocol.language_model import VARIABLE, attribute_of

TABLE = {"model": "auto", "tasks": ["arc_easy"], "batch_size": 2, "perplexity": [{"files": ["a.jsonl"], "name": "web"}]}


def test_the_task_is_made_from_the_variable(monkeypatch, tmp_path):
    """As `load` of the worker finds it; a name of another table is not there."""
    monkeypatch.setenv(VARIABLE, json.dumps({"table": TABLE, "folders": [str(tmp_path)]}))
    loaded = load(f"sidecar.lm.table:{attribute_of(TABLE)}", str(tmp_path))
    assert list(loaded.task.eval_sets) == ["arc_easy", "web"]
    from sidecar.lm import table

    with pytest.raises(AttributeError, match="task_0"):
        _ = table.task_0
    with pytest.raises(EvaluationError, match=r"auto.*config\.json in .*model = "):
        loaded.task.build_model()


def test_the_newest_whole_configuration_is_taken(tmp_path):
    """That of a checkpoint which is being written, or is gone, is not."""
    for number, text in enumerate(['{"a": 1}', '{"a": 2}', '{"a"']):
        folder = tmp_path / "ckpts" / f"checkpoint-{number}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(text)
        os.utime(folder / "config.json", (number, number))
    newest = NewestFolder([str(tmp_path / "ckpts"), str(tmp_path / "none")])
    assert os.fspath(newest) == str(tmp_path / "ckpts" / "checkpoint-1")
    pin = tmp_path / "pins" / "checkpoint-3@abc"
    pin.mkdir(parents=True)
    (pin / "config.json").write_text("{}")
    assert os.fspath(NewestFolder([str(tmp_path / "ckpts"), str(tmp_path / "pins")])) == str(pin)


def test_an_adapter_stands_for_its_base_unless_it_has_a_tokenizer(tmp_path):
    """A base model that is not on this machine is named, with the line to write."""
    adapter, base = tmp_path / "ckpts/checkpoint-3", tmp_path / "base"
    for folder in (adapter, base):
        folder.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    newest = NewestFolder([str(tmp_path / "ckpts")])
    assert newest.find() == str(adapter)
    with pytest.raises(EvaluationError, match=f"{base}.*FOLDER"):
        os.fspath(newest)
    (base / "config.json").write_text("{}")
    assert os.fspath(newest) == str(base)
    (adapter / "tokenizer_config.json").write_text("{}")
    assert os.fspath(newest) == str(adapter)


@pytest.mark.torch
@pytest.mark.nightly
def test_check_says_that_a_daemon_waits_for_the_first_model(tmp_path):
    """In an empty directory, where `model = "auto"` names nothing yet, no problem is found."""
    (tmp_path / "ckpts").mkdir()
    (tmp_path / "sidecar.toml").write_text('[lm]\ntasks = ["arc_easy"]\n')
    words = ("-m", "sidecar", "check", "ckpts", "--http", "127.0.0.1:0")
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert not done.returncode, done.stdout + done.stderr
    assert 'Not tried ([lm] model = "auto" is that of the first checkpoint, for which a daemon waits)' in done.stdout
