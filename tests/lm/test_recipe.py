"""The recipes of the page about language models work as typed: each trainer, tasks, settings, two workers."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from lm import tiny
from lm.conftest import PACKAGES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/language-models.md"
PYTHON = PACKAGES.parents[2] / "bin" / "python"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def recipe(needs, tmp_path):
    """Files of the page and the data that they name in a folder, and a function that runs programs there."""
    needs("lm-eval", PYTHON.parent)
    blocks = dict(re.findall(r"```\w+\n# ([\w/]+\.(?:py|yaml|toml))\n(.*?)```", PAGE.read_text(), re.DOTALL))
    for name, text in blocks.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    tiny.tokenizer(tmp_path / "base")
    tiny.build_model().save_pretrained(tmp_path / "base")
    (tmp_path / "val").mkdir()
    rows = [{"text": " ".join(tiny.WORDS[number % 7 :])} for number in range(32)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [row | {"domain": ("web", "code")[number % 2]} for number, row in enumerate(rows)]
    (tmp_path / "val/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"country": f"land {number}", "cities": ["the cat", "a mat"], "answer": number % 2} for number in range(11)]
    (tmp_path / "capitals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("SIDECAR_", "PYTHONPATH"))}
    environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    environ |= {"SIDECAR_WORKER_PYTHON": str(PYTHON), "OMP_NUM_THREADS": "1"}

    def run(*words, meanwhile=None):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(list(map(str, words)), cwd=tmp_path, env=environ, **pipes) as program:
            try:
                if meanwhile is not None:
                    meanwhile(psutil.Process(program.pid))
                out, err = program.communicate(timeout=400)
            except BaseException:
                program.terminate()
                raise
        assert not program.returncode, out + err
        return out

    def evaluate(folder="ckpts", *, task="", replicas=1):
        words = ("eval", folder, *(("--task", task) if task else ()), "--replicas", replicas, "--json")
        table = tmp_path / "sidecar.toml"
        hidden = table.rename(tmp_path / "hidden") if task else table
        try:
            return json.loads(run(sys.executable, "-m", "sidecar", *words))
        finally:
            hidden.rename(table)

    return tmp_path, run, evaluate


@pytest.mark.timeout(900)  # three times two frameworks are imported by workers of a low priority
def test_the_recipe_works_as_typed(recipe):
    """The last checkpoint of the Trainer, evaluated by two workers, and by one with settings alone: the same bits."""
    _, run, evaluate = recipe
    run(PYTHON, "train_lm.py")
    found = [evaluate(task="lm_task.py:task"), evaluate(task="perplexity_task.py:task", replicas=2), evaluate()]
    few, one, two = (each["metrics"] for each in found)
    assert one == two
    assert list(one) == ["capitals", "perplexity"]
    for number in few["capitals"]["acc"], one["capitals"]["acc"]:
        assert number["goal"] == "max"
        assert number["lower"] < number["value"] < number["upper"]
    assert one["perplexity"]["bits_per_byte"]["goal"] == "min"
    assert found[2]["classes"]["perplexity"]["loss"].keys() == {"code", "web"}
    assert {each["step"] for each in found} == {20}


@pytest.mark.timeout(900)
def test_programs_that_the_model_writes(recipe):
    """In the sandbox of the page, if it is installed. The text of the model is a string in a program."""
    folder, run, evaluate = recipe
    if shutil.which("bwrap") is None:
        text = (folder / "code_task.py").read_text()
        (folder / "code_task.py").write_text(re.sub(r'    \*\("bwrap".*?\n\]', "]", text, count=1, flags=re.DOTALL))
    programs = ["assert add(2, 3) == 5", "assert add(2, 3) == 6", "assert (", "while True: pass"]
    judge = f"""
from code_task import run_code
document = {{"prompt": "def add(a, b):\\n", "test": ""}}
print([run_code("    return a + b", document | {{"test": test}}) for test in {programs!r}])
"""
    assert run(PYTHON, "-c", judge).splitlines()[-1] == "[True, False, False, False]"
    text = 'def three():\n    return 3\nr"""'
    rows = [{"prompt": text, "solution": "", "test": f'"""\nassert three() == {number}'} for number in (3, 4)]
    (folder / "functions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = evaluate("base", task="code_task.py:task")["metrics"]["functions"]
    assert [found[f"pass@{k}"]["value"] for k in (1, 5)] == [0.5, 0.5]


@pytest.mark.timeout(900)
def test_adapters_of_peft(recipe):
    """With settings alone, with the base model named, and with all weights merged into a plain model."""
    folder, run, evaluate = recipe
    run(PYTHON, "train_peft.py")
    assert not (folder / "ckpts/checkpoint-20/config.json").exists()
    found = evaluate(replicas=2)
    assert found["step"] == 20
    named = (folder / "sidecar.toml").read_text().replace('"auto"', '"base"', 1)
    (folder / "sidecar.toml").write_text(named)
    assert evaluate()["metrics"] == found["metrics"]
    base = evaluate("base")["metrics"]["perplexity"]["loss"]["value"]
    loss = found["metrics"]["perplexity"]["loss"]["value"]
    assert abs(loss - base) > 0.1
    merge = """
from peft import AutoPeftModelForCausalLM
AutoPeftModelForCausalLM.from_pretrained("ckpts/checkpoint-20").merge_and_unload().save_pretrained("merged/step-20")
"""
    run(PYTHON, "-c", merge)
    assert evaluate("merged")["metrics"]["perplexity"]["loss"]["value"] == pytest.approx(loss, rel=1e-5)
    config = folder / "ckpts/checkpoint-20/adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": 16', '"lora_alpha": 17'))
    assert evaluate()["metrics"]["perplexity"]["loss"]["value"] != loss


@pytest.mark.timeout(900)
def test_sharded_checkpoints_of_fsdp(recipe):
    """Two processes save folders of DCP; the model is that of the folder which the settings name."""
    folder, run, evaluate = recipe
    run(PYTHON, *TORCHRUN, "train_fsdp.py")
    (folder / "sidecar.toml").write_text((folder / "sidecar.toml").read_text().replace('"auto"', '"base"', 1))
    one, two = evaluate(), evaluate(replicas=2)
    assert one["metrics"] == two["metrics"]
    assert one["step"] == 20
    assert one["metrics"]["perplexity"]["bits_per_byte"]["value"] < 3


def _kill_follower(daemon):
    """Kill the second process of the first worker, once it is there, and wait until its worker has ended."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        for process in daemon.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                leader = process.parent()
                if "--follows" in process.cmdline() and "--follows" not in leader.cmdline():
                    process.kill()
                    leader.wait(240)
                    return
        time.sleep(0.1)
    pytest.fail("there was no second process")


@pytest.mark.timeout(1200)
def test_workers_of_two_processes_with_settings_alone(recipe):
    """The model is divided by its tensor parallel plan; a process that is killed costs an attempt, and no number."""
    folder, run, evaluate = recipe
    run(PYTHON, "train_lm.py")
    alone = evaluate()["metrics"]
    shutil.rmtree(folder / "ckpts/checkpoint-10")
    settings = 'processes_per_worker = 2\nmodel_parallel = "tensor"\nhttp = "127.0.0.1:0"\nstop_after_step = 20\n'
    (folder / "sidecar.toml").write_text(settings + (folder / "sidecar.toml").read_text())
    run(sys.executable, "-m", "sidecar", "run", "ckpts", meanwhile=_kill_follower)
    rows = json.loads(run(sys.executable, "-m", "sidecar", "history", "ckpts", "--json"))
    (row,) = (each for each in rows if each["status"] == "succeeded")
    assert row["step"] == 20
    for eval_set, numbers in alone.items():
        for name, number in numbers.items():
            assert row["metrics"][eval_set][name]["value"] == pytest.approx(number["value"], rel=1e-6), name


@pytest.mark.timeout(900)
def test_nanogpt(recipe):
    """A model with its interface, which returns scores and a loss, and its one file, with the step in it."""
    folder, run, evaluate = recipe
    shutil.copy(Path(__file__).with_name("nanogpt_model.py"), folder / "model.py")
    write = """
import os, numpy, torch
from nanogpt_task import build_model
os.makedirs("data/shakespeare_char"); os.makedirs("out")
tokens = numpy.random.default_rng(1).integers(0, 65, 500).astype("uint16")
tokens.tofile("data/shakespeare_char/val.bin")
torch.manual_seed(2)
model = build_model().eval()
torch.save({"model": model.state_dict(), "iter_num": 250, "config": {"out_dir": "out"}}, "out/ckpt.pt")
data = torch.from_numpy(tokens.astype("int64"))
losses = []
for first in range(1, 500, 64):  # each token once, the last ones with the context of a whole window
    end = min(first + 64, 500)
    piece = data[None, max(0, end - 65) : end]
    scores = model(piece[:, :-1], targets=piece[:, 1:].clone())[0][0, first - end :]
    losses.append(torch.nn.functional.cross_entropy(scores, data[first:end], reduction="sum").item())
print(sum(losses) / 499)
"""
    right = float(run(PYTHON, "-c", write))
    one, two = (evaluate("out", task="nanogpt_task.py:task", replicas=count) for count in (1, 2))
    assert one["metrics"] == two["metrics"]
    assert one["step"] == 250
    assert one["metrics"]["perplexity"]["loss"]["value"] == pytest.approx(right, rel=1e-6)


@pytest.mark.timeout(900)
def test_torchtitan(recipe):
    """A model with its interface, and a folder in its layout: weights at the top level, next to other states."""
    folder, run, evaluate = recipe
    (folder / "torchtitan" / "models").mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("torchtitan_model.py"), folder / "torchtitan" / "models" / "llama3.py")
    write = """
import numpy, torch
import torch.distributed.checkpoint as dcp
from titan_task import build_model, logits
tokens = numpy.random.default_rng(1).integers(0, 65, 500).astype("uint16")
tokens.tofile("val.bin")
torch.manual_seed(2)
model = build_model().eval()
optimizer = {f"state.{name}.exp_avg": value for name, value in model.state_dict().items()}
states = {"optimizer": optimizer, "train_state": {"step": torch.tensor(20)}, "lr_scheduler": {"last_epoch": 20}}
dcp.save({**states, **model.state_dict()}, checkpoint_id="outputs/checkpoint/step-20")
data = torch.from_numpy(tokens.astype("int64"))
losses = []
for first in range(1, 500, 64):  # each token once, the last ones with the context of a whole window
    end = min(first + 64, 500)
    piece = data[None, max(0, end - 65) : end]
    scores = logits(model, piece[:, :-1])[0, first - end :]
    losses.append(torch.nn.functional.cross_entropy(scores, data[first:end], reduction="sum").item())
print(sum(losses) / 499)
"""
    right = float(run(PYTHON, "-c", write).splitlines()[-1])
    one, two = (evaluate("outputs/checkpoint", task="titan_task.py:task", replicas=count) for count in (1, 2))
    assert one["metrics"] == two["metrics"]
    assert one["step"] == 20
    assert one["metrics"]["perplexity"]["loss"]["value"] == pytest.approx(right, rel=1e-6)
