"""The commands, code and links of the README and of the pages in docs/ work as they stand there."""

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs/tutorial.md"
HOME = ROOT / "docs/index.md"
RESULTS = ROOT / "tests/benchmarks/RESULTS.md"
HOW_TO = ROOT / "docs/how-to"
PAGES = (README, TUTORIAL, ROOT / "docs/scripts.md", *sorted(HOW_TO.glob("*.md")))
SIDECAR = Path(sys.executable).with_name("sidecar")
ENVIRONMENT = {
    **os.environ,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "SIDECAR_STANDBY": "false",  # no worker process that is not needed: each imports the framework
    "SIDECAR_YIELD_SECONDS": "0",  # this machine may be busy
    "SIDECAR_QUIET_SECONDS": "0.1",  # nobody writes any more when these commands begin
    "SIDECAR_GROUP_SETTLE_SECONDS": "0.1",
}


def snippet(name, page=TUTORIAL):
    """Return the code block of a page that is marked with the name of its file."""
    found = re.search(rf"<!-- {re.escape(name)} -->\n```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert found, f"{page} has no snippet {name}"
    return found[1]


def run(folder, *command, seconds=120):
    """Run a command in the folder and return what it prints; it must succeed."""
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained_as_shown(tmp_path_factory):
    """Return a folder with the tutorial's task, and the checkpoints that its training script saved there."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "train.py").write_text(snippet("train.py"))
    (folder / "my_eval.py").write_text(snippet("my_eval.py"))
    run(folder, sys.executable, "train.py")
    return folder


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("replicas", "told"), [("1", "1 worker"), pytest.param("2", "2 workers", marks=pytest.mark.nightly)]
)
def test_the_training_script_and_the_smallest_task_work(trained_as_shown, replicas, told):
    """The script saves in a fresh folder, and the tutorial's task evaluates the newest checkpoint."""
    shown = run(trained_as_shown, str(SIDECAR), "eval", "ckpts", "--task", "my_eval.py:task", "--replicas", replicas)
    assert re.search(rf"1003 examples of test; {told}\b", shown)


@pytest.mark.tensorflow
def test_the_evaluator_in_one_process_works(trained_as_shown, tmp_path):
    """The script of the page evaluates the newest checkpoint, and leaves nothing in the checkpoint directory."""
    shutil.copytree(trained_as_shown / "ckpts", tmp_path / "ckpts", ignore=shutil.ignore_patterns(".*"))
    (tmp_path / "my_eval.py").write_text(snippet("my_eval.py"))
    (tmp_path / "evaluate.py").write_text(snippet("evaluate.py", HOW_TO / "sidecar-evaluator.md"))
    shown = run(tmp_path, sys.executable, "evaluate.py")
    assert shown.splitlines()[-1].startswith("epoch-03.keras 189 {'loss': ")
    assert [path.name for path in (tmp_path / "best").glob("[!.]*")] == ["epoch-03.keras"]
    assert [path.name for path in (tmp_path / "ckpts").glob(".*")] == []


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_the_script_of_a_custom_training_loop_works(tmp_path):
    """The script of the page saves in a fresh folder, and the tutorial's task evaluates the newest checkpoint."""
    (tmp_path / "train.py").write_text(snippet("train.py", HOW_TO / "custom-training-loops.md"))
    (tmp_path / "my_eval.py").write_text(snippet("my_eval.py"))
    run(tmp_path, sys.executable, "train.py")
    shown = run(tmp_path, str(SIDECAR), "eval", "ckpts", "--task", "my_eval.py:task", "--replicas", "2")
    assert "1003 examples of test; 2 workers" in shown


def evaluated_rows(table):
    """The words of each row of `sidecar history` about an evaluation, without the mark of the best."""
    words = [line.replace("★", " ").split() for line in table.splitlines()]
    return [each for each in words if each[2:3] == ["ok"]]


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_saves_are_read_as_the_page_shows(trained_as_shown, tmp_path):
    """The snippet prints the accuracy that the run has published."""
    shutil.copytree(trained_as_shown / "ckpts", tmp_path / "ckpts")
    task = snippet("my_eval.py").replace("batch_size=64,", "batch_size=64,\n        predictions=True,")
    (tmp_path / "my_eval.py").write_text(task)
    (tmp_path / "read_saves.py").write_text(snippet("read_saves.py", HOW_TO / "results.md"))
    run(tmp_path, str(SIDECAR), "run", "ckpts", "--task", "my_eval.py:task", "--once", "--http", "127.0.0.1:0")
    accuracy = float(run(tmp_path, sys.executable, "read_saves.py"))
    newest = evaluated_rows(run(tmp_path, str(SIDECAR), "history", "ckpts"))[-1]
    assert newest[:3] == ["189", "epoch-03.keras", "ok"]
    assert accuracy == pytest.approx(float(newest[3]), rel=1e-4)


@pytest.mark.seconds
def test_the_scikit_learn_models_are_evaluated_as_the_page_shows(tmp_path):
    """The page's script, task and settings, as they stand there."""
    page = HOW_TO / "other-libraries.md"
    for name in ("train.py", "my_eval.py"):
        (tmp_path / name).write_text(snippet(name, page))
    settings = re.search(r"<!-- sidecar.toml -->\n```toml\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "sidecar.toml").write_text(settings[1])
    run(tmp_path, sys.executable, "train.py")
    run(tmp_path, str(SIDECAR), "run", "ckpts", "--task", "my_eval.py:task", "--once", "--http", "127.0.0.1:0")
    rows = evaluated_rows(run(tmp_path, str(SIDECAR), "history", "ckpts"))
    assert [row[:3] for row in rows] == [[str(step), f"model-{step}.joblib", "ok"] for step in (1, 2, 3)]
    assert float(rows[-1][3]) > 0.8


@pytest.mark.nightly
@pytest.mark.seconds
def test_keras_on_jax_is_evaluated_as_the_page_shows(tmp_path):
    """The page's script and task, without TensorFlow."""
    for name in ("train_on_jax.py", "jax_eval.py"):
        (tmp_path / name).write_text(snippet(name, HOW_TO / "other-libraries.md"))
    run(tmp_path, sys.executable, "train_on_jax.py")
    (tmp_path / "sidecar.toml").write_text('framework = "python"\n')
    run(tmp_path, str(SIDECAR), "run", "ckpts", "--task", "jax_eval.py:task", "--once", "--http", "127.0.0.1:0")
    rows = evaluated_rows(run(tmp_path, str(SIDECAR), "history", "ckpts"))
    assert [row[1] for row in rows] == [f"epoch-0{epoch}.keras" for epoch in (1, 2, 3)]


def test_the_task_is_described_completely():
    """Every argument of a task and of an eval set is named on the page about tasks."""
    from dataclasses import fields

    from sidecar import EvalSet, Task

    text = (HOW_TO / "write-a-task.md").read_text()
    assert [each.name for kind in (Task, EvalSet) for each in fields(kind) if f"`{each.name}" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_code_compiles(page):
    """Also parts of programs, which nothing runs."""
    for block in re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
        ast.parse(textwrap.dedent(block))  # a part of a list is indented


def test_every_setting_of_the_example_file_exists(tmp_path):
    """The TOML that is shown is read without a complaint, except for paths that are the reader's own."""
    from sidecar.settings import load

    (example,) = re.findall(r"```toml\n(.*?)```", (HOW_TO / "settings-overview.md").read_text(), re.DOTALL)
    path = tmp_path / "sidecar.toml"
    path.write_text(example.replace("/opt/train/bin/python", sys.executable))
    settings = load({"config": path}, environ={})
    assert settings.replicas == 2
    assert settings.worker_env == {"OMP_NUM_THREADS": "1", "HTTP_PROXY": None}


def test_the_overview_names_settings_only():
    """The table by intent names no setting that does not exist."""
    from sidecar.settings import Settings

    table = re.findall(r"^\|.*\| (`.*`) \|", (HOW_TO / "settings-overview.md").read_text(), re.MULTILINE)
    named = re.findall(r"`([^`]+)`", " ".join(table))
    assert len(named) > 20
    assert [each for each in named if each not in Settings.model_fields] == []


def test_every_option_that_scripts_rely_on_is_offered():
    """`--help` of the daemon names each option of the contract."""
    from sidecar.commands.options import FLAGS

    shown = subprocess.run(
        [str(SIDECAR), "run", "--help"],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert shown.returncode == 0
    assert [flag for flag in (*FLAGS, "--config") if flag not in shown.stdout] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_exist(page):
    """Each `sidecar COMMAND --option` that a page shows is one that the program takes."""
    import typer

    from sidecar.commands.cli import app

    commands = typer.main.get_command(app).commands
    unknown = []
    for line in re.findall(r"(?:^|[`$ ])sidecar ((?:[a-z]|-[-a-z])[^`\n]*)", page.read_text(), re.MULTILINE):
        words = line.split("  ")[0].split("#")[0].split()
        if words[0] not in commands and not words[0].startswith("-"):
            continue  # a sentence about the package
        taken, named = ["--version", "--help"], commands.get(words[0])
        named = getattr(named, "commands", {}).get("".join(words[1:2]), named)  # `hooks test`
        if named is not None:
            taken += [name for option in named.params for name in option.opts]
        unknown += [word for word in words if word.startswith("-") and word.strip(",.;:") not in taken]
    assert unknown == []


def test_every_kind_of_failure_is_explained():
    """Each kind has its row in the table of the page about troubleshooting."""
    from sidecar.protocol.states import FAILURE_CLASSES

    rows = "".join(re.findall(r"^\| (`[^|]*) \|", (HOW_TO / "troubleshooting.md").read_text(), re.MULTILINE))
    assert [kind for kind in FAILURE_CLASSES if f"`{kind}`" not in rows] == []


def test_every_page_is_two_steps_from_the_readme():
    """The README links to the home page, and the home page to each how-to, so that nobody searches for one."""
    assert "docs/index.md#all-pages" in README.read_text()
    links = re.findall(r"\]\(([^)\s#]+)", HOME.read_text())
    assert [page.name for page in PAGES[1:] if str(page.relative_to(HOME.parent)) not in links] == []


def test_the_home_page_begins_as_the_readme():
    """All before the second heading is the same: a copy with links of its own."""
    first_screen, home = (page.read_text().partition("\n## ")[0] for page in (README, HOME))
    assert home == first_screen.replace("](docs/", "](")


def test_the_readme_is_read_anywhere():
    """It is short, and no line is too wide for a terminal. HTML is limited to sections that open and close."""
    text = README.read_text()
    lines = text.splitlines()
    assert len(lines) <= 125
    assert [line for line in lines if len(line) > 130] == []
    code = "".join(re.findall(r"```.*?\n(.*?)```", text, re.DOTALL)).splitlines()
    assert [line for line in code if len(line) > 97] == []  # what 830 pixels show without scrolling
    assert set(re.findall(r"</?([a-z]+)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))) <= {
        "details",
        "summary",
        "b",
    }


@pytest.mark.parametrize("page", [README, ROOT / "docs/explanation/promises.md"], ids=lambda page: page.stem)
def test_the_cost_for_training_is_what_was_measured(page):
    """The slowdown by an evaluation, on cores of its own and on shared ones."""
    table = RESULTS.read_text().partition("## Trainer")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) +\|[^|]+\|[^|]+\| ([\d.]+) ", table, re.MULTILINE)
    beside = {name: float(slowdown) for name, slowdown in rows if "inline" not in name}
    apart = [slowdown for name, slowdown in beside.items() if "unpinned" not in name]
    shared = [slowdown for name, slowdown in beside.items() if "unpinned" in name]
    assert len(apart) == len(shared) == 2
    said = re.findall(r"\b[0-2]\.\d\d\b", page.read_text())
    assert said == [f"{number:.2f}" for number in (min(apart), max(apart), max(shared))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    """Files as they lie, headings as GitHub makes anchors of them."""
    assert len(set(anchors(page))) == len(anchors(page)), "two headings of one name"
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def without_code(page):
    """Return the page's text without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchors(page):
    """Return the anchors of the page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings]
