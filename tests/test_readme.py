"""What the README tells a new user to type works as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
SIDECAR = Path(sys.executable).with_name("sidecar")


def snippet(name):
    found = re.search(rf"<!-- {re.escape(name)} -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found, f"the README has no snippet {name}"
    return found[1]


@pytest.mark.tensorflow
def test_the_smallest_task_is_complete_and_working(tmp_path):
    """Its training script saves, its task evaluates the last checkpoint with two workers, in a fresh folder."""
    for name in ("train.py", "my_eval.py"):
        (tmp_path / name).write_text(snippet(name))
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    trained = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert trained.returncode == 0, trained.stderr
    evaluated = subprocess.run(
        [str(SIDECAR), "eval", "ckpts/ckpt-3", "--task", "my_eval.py:task", "--replicas", "2"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert evaluated.returncode == 0, evaluated.stderr
    assert "1003 examples of test; 2 workers" in evaluated.stdout


def test_every_setting_of_the_example_file_exists(tmp_path):
    """The TOML that the README shows is read without a complaint, but for paths that are the reader's own."""
    from sidecar.config import load

    (example,) = re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    path = tmp_path / "sidecar.toml"
    path.write_text(example.replace("/opt/train/bin/python", sys.executable))
    settings = load({"config": path}, environ={})
    assert settings.replicas == 2
    assert settings.worker_env == {"OMP_NUM_THREADS": "1", "HTTP_PROXY": None}


def test_every_option_that_scripts_rely_on_is_offered():
    """`--help` of the daemon names each option of the README's contract."""
    from sidecar.config import FLAGS

    shown = subprocess.run(
        [str(SIDECAR), "run", "--help"], capture_output=True, text=True, timeout=60, env=os.environ | {"COLUMNS": "200"}
    )
    assert shown.returncode == 0
    assert [flag for flag in (*FLAGS, "--config") if flag not in shown.stdout] == []


def test_every_kind_of_failure_is_explained():
    """Whoever meets one finds its row under "When something goes wrong"."""
    from sidecar.records import KINDS

    rows = "".join(re.findall(r"^\| (`[^|]*) \|", README.read_text(), re.MULTILINE))
    assert [kind for kind in KINDS if f"`{kind}`" not in rows] == []


def test_links_within_the_page_lead_somewhere():
    """Headings as GitHub makes anchors of them; files as they lie beside."""
    text = re.sub(r"```.*?```", "", README.read_text(), flags=re.DOTALL)
    headings = [re.sub(r"[^\w\- ]", "", each.lower()).strip() for each in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    anchors = [each.replace(" ", "-") for each in headings]
    assert len(set(anchors)) == len(anchors), "two headings of one name"
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [each for each in links if each.startswith("#") and each[1:] not in anchors] == []
    paths = [each.partition("#")[0] for each in links if not each.startswith(("#", "http"))]
    assert [each for each in paths if not (README.parent / each).exists()] == []
