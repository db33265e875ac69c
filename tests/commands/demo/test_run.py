"""`sidecar demo` as a person runs it: from the first process to the last."""

import re
import subprocess
import sys
from urllib.request import urlopen

import pytest
from commands.demo.running import _task, events, history, wait_until
from commands.demo.trainers import ROOT


@pytest.mark.tensorflow
def test_demo_evaluates_every_checkpoint_and_ends_by_itself(start):
    """Exit code 0; all checkpoints exact on two workers; nothing ran on the chief; nothing is left running."""
    demo = start("--checkpoints", "2")
    assert demo.wait() == 0, demo.output
    rows = history(demo)
    assert [(row["step"], row["status"], row["final"]) for row in rows] == [
        (120, "succeeded", True),
        (240, "succeeded", True),
    ]
    for row in rows:
        assert (row["workers"], row["examples"]) == (2, {"test": 397})
        assert f"step {row['step']}: accuracy {row['metrics']['test']['accuracy']['value']:.4f}" in demo.output
    assert rows[-1]["metrics"]["test"]["accuracy"]["value"] > 0.8
    logs = demo.folder / "logs"
    assert "chief_idles" in events(logs / "daemon-chief.log")
    assert "worker_ready" not in events(logs / "daemon-chief.log")
    assert "worker_ready" in events(logs / "daemon-worker.log")
    metric = r'^  sidecar_eval_metric\{eval_set="test",metric="(\w+)",run="digits"\} \S+$'
    assert sorted(re.findall(metric, demo.output, re.MULTILINE)) == ["accuracy", "loss"]
    said = r"Each of the 2 checkpoints .* The best one is ckpt-\d+, with accuracy 0\.\d{4}; the last one has 0\.\d{4}\."
    assert re.search(said, demo.output)
    assert "\x1b" not in demo.output
    wait_until(lambda: not demo.alive(), 10)  # the guards of worker processes follow the daemons


@pytest.mark.nightly
@pytest.mark.torch
def test_demo_with_pytorch_evaluates_every_checkpoint(start):
    """Two processes of torchrun train with DistributedDataParallel; the daemon beside the second evaluates."""
    demo = start("--framework", "torch", "--checkpoints", "2")
    assert demo.wait() == 0, demo.output
    rows = history(demo)
    assert [(row["step"], row["status"]) for row in rows] == [(120, "succeeded"), (240, "succeeded")]
    assert [(row["workers"], row["examples"]) for row in rows] == [(2, {"test": 397})] * 2
    assert len(list(demo.folder.glob("**/weights.pt"))) == 4
    assert rows[-1]["metrics"]["test"]["accuracy"]["value"] > 0.8
    assert "chief_idles" in events(demo.folder / "logs" / "daemon-chief.log")
    assert "The best one is step-240.pt" in demo.output
    wait_until(lambda: not demo.alive(), 10)


@pytest.mark.nightly
@pytest.mark.torch
def test_demo_with_a_language_model_evaluates_tasks_and_texts(start, needs):
    """Workers make the task from settings alone; the model comes with the first checkpoint."""
    python = ROOT / ".venv-lm/bin/python"
    needs("lm-eval", python.parent)
    demo = start("--framework", "lm", "--checkpoints", "2", python=str(python), PYTHONPATH=str(ROOT))
    assert demo.wait() == 0, demo.output
    rows = history(demo)
    assert [(row["step"], row["status"], row["workers"]) for row in rows] == [
        (120, "succeeded", 2),
        (240, "succeeded", 2),
    ]
    first, last = (row["metrics"]["texts"]["bits_per_byte"]["value"] for row in rows)
    assert first > last > 1
    assert {*rows[-1]["metrics"]} == {"next_line_code", "next_line_prose", "texts"}
    assert f"The best one is checkpoint-240, with bits_per_byte {last:.4f}" in demo.output
    wait_until(lambda: not demo.alive(), 10)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "framework",
    [pytest.param("tensorflow", marks=pytest.mark.tensorflow), pytest.param("torch", marks=pytest.mark.torch)],
)
def test_training_overfits(start, framework):
    """The best of the eight checkpoints comes before the last one, whose accuracy is clearly lower."""
    demo = start("--framework", framework)
    assert demo.wait() == 0, demo.output
    values = [row["metrics"]["test"]["accuracy"]["value"] for row in history(demo)]
    assert len(values) == 8
    assert 0 < values.index(max(values)) < 6
    assert values[-1] < max(values) - 0.03


@pytest.mark.nightly
@pytest.mark.torch
def test_killed_demo_with_pytorch_leaves_no_process_behind(start):
    """Torchrun starts its processes in sessions of their own."""
    demo = start("--framework", "torch")
    wait_until(lambda: list((demo.folder / "digits").glob("*.pt")))
    demo.process.kill()
    demo.wait()
    wait_until(lambda: not demo.alive(), 10)


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_keep_leaves_the_daemons_serving_until_ctrl_c(start):
    """Then training is over, both daemons answer, and Ctrl-C is the way to end, so the exit code is 0."""
    demo = start("--keep", "--checkpoints", "1")
    wait_until(lambda: "until you press Ctrl-C" in demo.output or demo.process.poll() is not None)
    listed = r"^  chief's daemon: (\S+)\n  worker's daemon: (\S+)$"
    urls = wait_until(lambda: re.search(listed, demo.output, re.MULTILINE)).groups()
    for url in urls:
        with urlopen(f"{url.rstrip('/')}/healthz", timeout=60) as answer:
            assert answer.status == 200
    assert not demo.children("train.py")
    demo.interrupt()
    assert demo.wait() == 0, demo.output
    wait_until(lambda: not demo.alive(), 10)  # the guards of worker processes follow the daemons


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_failed_training_is_named_with_the_end_of_its_log(start):
    """The worker's process is killed: the demo ends with 1, says which it was, and takes the others along."""
    demo = start()
    victim = wait_until(lambda: [each for each in demo.children("train.py") if _task(each) == "worker"])[0]
    log = demo.folder / "logs" / "train-worker.log"
    wait_until(lambda: log.stat().st_size)
    victim.kill()
    assert demo.wait() == 1
    assert f"training, its worker, was killed by SIGKILL; {log} ends:" in demo.output
    assert log.read_text().splitlines()[-1] in demo.output
    wait_until(lambda: not demo.alive(), 10)


@pytest.mark.tensorflow
def test_failed_daemon_is_named_with_the_end_of_its_log(start):
    """The chief's daemon is killed while it starts."""
    demo = start()
    victim = wait_until(lambda: [each for each in demo.children("run") if _task(each) == "chief"])[0]
    victim.kill()
    assert demo.wait() == 1
    assert "the daemon beside the chief was killed by SIGKILL" in demo.output
    wait_until(lambda: not demo.alive(), 10)


def test_directory_of_something_else_is_a_mistake_of_settings(start, tmp_path):
    """One sentence, exit code 2, and the folder is as it was."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    demo = start("--directory", str(tmp_path / "mine"))
    assert demo.wait() == 2
    assert len(demo.output.splitlines()) == 1
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_demo_itself_imports_no_framework(tmp_path):
    """Only its child processes do."""
    frameworks = {"tensorflow", "keras", "sklearn", "numpy", "torch"}
    script = f"import sys, sidecar.commands.demo.run; print(sorted({frameworks} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=True, timeout=240)
    assert done.stdout.decode().strip() == "[]"
