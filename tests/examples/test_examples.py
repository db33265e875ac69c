"""The programs in examples/ run as their headers say."""

import json
import re
import sys

import pytest
from examples.example_programs import EXAMPLES, ROOT, SIDECAR, copied, run

README_LINES = 40


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Return a folder in which one epoch of digits_train.py was saved."""
    folder = copied(tmp_path_factory.mktemp("digits") / "examples")
    run(folder, sys.executable, "digits_train.py", "1")
    return folder


@pytest.fixture(scope="module")
def custom_loop(tmp_path_factory):
    """Return a folder in which custom_loop_train.py saved."""
    folder = copied(tmp_path_factory.mktemp("loop") / "examples")
    run(folder, sys.executable, "custom_loop_train.py")
    return folder


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_predictions_reproduce_the_published_accuracy(digits):
    """Training, evaluation, and what the workers saved, read back by the program and by the page on results."""
    run(digits, SIDECAR, "run", "ckpts", "--task", "digits_task.py:task", "--once", "--http", "127.0.0.1:0")
    (entry,) = json.loads(run(digits, SIDECAR, "history", "ckpts", "--json"))
    assert (entry["step"], entry["checkpoint"], entry["status"]) == (22, "epoch-01.weights.h5", "succeeded")
    read = re.search(r"397 examples, accuracy (\S+)", run(digits, sys.executable, "read_predictions.py"))
    assert float(read[1]) == pytest.approx(entry["metrics"]["test"]["accuracy"]["value"], abs=1e-6)
    page = (ROOT / "docs/how-to/results.md").read_text()
    snippet = re.search(r"<!-- read_saves.py -->\n```python\n(.*?)```", page, re.DOTALL)[1]
    assert "epoch-03.keras@" in snippet
    printed = run(digits, sys.executable, "-c", snippet.replace("epoch-03.keras@", f"{entry['checkpoint']}@"))
    assert float(printed) == pytest.approx(entry["metrics"]["test"]["accuracy"]["value"], abs=1e-6)


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_one_process_evaluates_without_a_daemon(digits):
    """It ends after the last epoch's checkpoint, and exports it as the best."""
    shown = run(digits, sys.executable, "keras_evaluator.py", "1")
    assert re.search(r"^epoch-01.weights.h5, step 22: accuracy 0\.\d{4}$", shown, re.MULTILINE)
    assert (digits / "best" / "epoch-01.keras").is_file()


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_metrics_of_ones_own_are_published(digits):
    """Two workers publish the metrics that the task defines itself."""
    shown = run(digits, SIDECAR, "eval", "ckpts", "--task", "own_metric_task.py:task", "--replicas", "2")
    assert "397 examples of test; 2 workers" in shown
    assert [name for name in ("accuracy", "among_two", "margin") if name not in shown] == []


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_two_nodes_share_each_evaluation(custom_loop):
    """Evaluate the checkpoints of a custom loop."""
    run(custom_loop, sys.executable, "two_nodes.py")
    entries = json.loads(run(custom_loop, SIDECAR, "history", "ckpts", "--json"))
    assert sorted((entry["step"], entry["workers"]) for entry in entries if entry["status"] == "succeeded") == [
        (30, 2),
        (60, 2),
        (90, 2),
    ]


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.seconds
def test_common_mistakes_give_the_numbers_of_the_page(tmp_path):
    """Every wrong number differs from the exact one, and the page has them all."""

    def table(text):
        rows = re.findall(r"^\| (.*: .*) \| ([0-9.]+) \| ([0-9.]+) \|$", text, re.MULTILINE)
        return {name: (float(wrong), float(exact)) for name, wrong, exact in rows}

    printed = table(run(copied(tmp_path / "examples"), sys.executable, "common_mistakes.py"))
    page = table((ROOT / "docs" / "explanation" / "common-mistakes.md").read_text())
    assert list(printed) == list(page)
    for name, numbers in page.items():
        assert printed[name] == pytest.approx(numbers, abs=2e-5)
        assert numbers[0] != numbers[1]


def test_the_page_names_every_program():
    """The README of the examples links to every program and has a bounded length."""
    text = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f"]({path.name})" not in text] == []
    assert len(text.splitlines()) <= README_LINES


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_a_header_says_how_to_run_it(path):
    """With a command that names the program."""
    header = path.read_text().split('"""')[1]
    assert re.search(rf"^    .*{path.name}", header, re.MULTILINE)
