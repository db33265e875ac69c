"""The table `[lm]`: what it may say, and the task and the variable that follow from it."""

import inspect
import json
from pathlib import Path

import pytest

from sidecar.lm import harness, perplexity
from sidecar.protocol.language_model import VARIABLE
from sidecar.settings import load
from sidecar.settings.language_model import HARNESS, PERPLEXITY, check_table
from sidecar.settings.model import Settings

TABLE = """
[lm]
tasks = "arc_easy"
num_fewshot = 2
[lm.perplexity]
files = "val/*.jsonl"
by = "domain"
"""


def test_a_table_makes_task_and_variable(tmp_path):
    """With absolute paths, for any number of readings; another table is another task."""
    (tmp_path / "sidecar.toml").write_text(TABLE)
    settings = load({"checkpoint_dir": tmp_path / "ckpts", "config": tmp_path / "sidecar.toml"}, environ={})
    module, _, attribute = settings.task.partition(":")
    assert module == "sidecar.lm.table"
    given = json.loads(settings.worker_env[VARIABLE])
    texts = {"files": [str(Path.cwd() / "val/*.jsonl")], "by": "domain"}
    assert given["table"] == {"model": "auto", "tasks": ["arc_easy"], "num_fewshot": 2, "perplexity": [texts]}
    assert given["folders"] == [str(tmp_path / "ckpts"), str(tmp_path / "ckpts/.sidecar/ckpts/pins")]
    again = Settings(**settings.model_dump())
    assert (again.task, again.worker_env) == (settings.task, settings.worker_env)
    other = Settings(checkpoint_dir=tmp_path, lm={"tasks": ["arc_easy"]})
    assert attribute not in other.task
    plain = Settings(checkpoint_dir=tmp_path)
    assert (plain.task, plain.worker_env) == (None, {})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("arc_easy", "not JSON"),
        ({"model": "auto"}, r"tasks = \["),
        ({"task": ["a"]}, "task: there is no such key, but model"),
        ({"tasks": [3]}, "tasks: write a list"),
        ({"tasks": ["a"], "model": ""}, "model: write the path"),
        ({"perplexity": "a.jsonl"}, "perplexity: write a table"),
        ({"perplexity": {"by": "a"}}, "files: write a pattern"),
        ({"perplexity": [{"files": "a", "logits": 1}]}, "logits: there is no such key, but files"),
    ],
)
def test_mistakes_in_the_table(table, words):
    """Each is told with the key and what to write."""
    with pytest.raises(ValueError, match=words):
        check_table(table)


def test_a_task_next_to_the_table_is_refused(tmp_path):
    """It would be unknown which of them is evaluated."""
    with pytest.raises(ValueError, match=r"'a\.py:task'|write either task"):
        Settings(checkpoint_dir=tmp_path, lm={"tasks": ["a"]}, task="a.py:task")


def test_keys_are_arguments_of_the_functions():
    """A key without an argument would fail in the worker process only."""
    of_harness = inspect.signature(harness).parameters
    assert {name for name in HARNESS if name not in of_harness} == {
        "apply_chat_template",
        "fewshot_as_multiturn",
        "system_instruction",
        "gen_kwargs",
        "fewshot_random_seed",
        "confirm_run_unsafe_code",
    }
    assert set(PERPLEXITY) < inspect.signature(perplexity).parameters.keys()
