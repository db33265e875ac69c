"""The recipe of the page about language models works as typed: Trainer, a task of the harness, two workers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lm import tiny
from lm.conftest import PACKAGES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/language-models.md"
PYTHON = PACKAGES.parents[2] / "bin" / "python"

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]


@pytest.mark.timeout(900)  # three times two frameworks are imported by workers of a low priority
def test_the_recipe_works_as_typed(needs, tmp_path):
    """The last checkpoint of the Trainer, evaluated by two workers, and by one with settings alone: the same bits."""
    needs("lm-eval", PYTHON.parent)
    blocks = dict(re.findall(r"```\w+\n# ([\w/]+\.(?:py|yaml|toml))\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert blocks.keys() == {"train_lm.py", "lm_task.py", "perplexity_task.py", "sidecar.toml", "tasks/capitals.yaml"}
    (tmp_path / "tasks").mkdir()
    (tmp_path / "val").mkdir()
    table = blocks.pop("sidecar.toml")
    for name, text in blocks.items():
        (tmp_path / name).write_text(text)
    tiny.tokenizer(tmp_path / "base")
    tiny.config().save_pretrained(tmp_path / "base")
    rows = [{"text": " ".join(tiny.WORDS[number % 7 :])} for number in range(32)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [row | {"domain": ("web", "code")[number % 2]} for number, row in enumerate(rows)]
    (tmp_path / "val/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"country": f"land {number}", "cities": ["the cat", "a mat"], "answer": number % 2} for number in range(11)]
    (tmp_path / "capitals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("SIDECAR_", "PYTHONPATH"))}
    environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    run(tmp_path, environ, PYTHON, "train_lm.py")
    environ |= {"SIDECAR_WORKER_PYTHON": str(PYTHON)}
    found = []
    for task, replicas in (("lm_task.py:task", "1"), ("perplexity_task.py:task", "2"), ("", "1")):
        words = ("eval", "ckpts", *(("--task", task) if task else ()), "--replicas", replicas, "--json")
        (tmp_path / "sidecar.toml").write_text("" if task else table)
        found.append(json.loads(run(tmp_path, environ, sys.executable, "-m", "sidecar", *words)))
    few, one, two = (each["metrics"] for each in found)
    assert one == two
    assert list(one) == ["capitals", "perplexity"]
    for number in few["capitals"]["acc"], one["capitals"]["acc"]:
        assert number["goal"] == "max"
        assert number["lower"] < number["value"] < number["upper"]
    assert one["perplexity"]["bits_per_byte"]["goal"] == "min"
    assert found[2]["classes"]["perplexity"]["loss"].keys() == {"code", "web"}
    assert {each["step"] for each in found} == {20}


def run(folder, environ, *words):
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env=environ, capture_output=True, text=True, timeout=400, check=False
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout
