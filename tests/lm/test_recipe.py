"""The recipes of the page about language models work as typed: each trainer, tasks, settings, two workers."""

import contextlib
import itertools
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

from sidecar import results
from sidecar.evaluation.artifact_reader import read_record

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

    def evaluate(folder="ckpts", *more, task="", replicas=1):
        words = ("eval", folder, *more, *(("--task", task) if task else ()), "--replicas", replicas, "--json")
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


BROKEN = """
import os, signal, subprocess
import code_task
from sidecar import Task
from sidecar.lm import harness, model

def run_code(answer, document):
    if document["prompt"].startswith("2"):
        {fault}
    return code_task.run_code(answer, document)

sets = harness("functions", include_path="tasks", tokenizer="base", run_code=run_code, run_code_seconds=20)
task = Task(build_model=model("base"), eval_sets=sets)
"""


@pytest.fixture
def coded(recipe):
    """The recipe with five functions, whose 25 answers pass by their numbers of characters; without a sandbox."""
    folder, run, evaluate = recipe
    text = (folder / "code_task.py").read_text()
    (folder / "code_task.py").write_text(re.sub(r'    \*\("bwrap".*?\n\]', "]", text, count=1, flags=re.DOTALL))
    test = '"""\nassert len(text) % 3'
    rows = [{"prompt": f'{number}\ntext = r"""', "solution": "", "test": test} for number in range(5)]
    (folder / "functions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, run, evaluate


@pytest.mark.timeout(900)
def test_programs_are_judged_by_two_workers(coded):
    """The bits are those of one worker; each worker saves the programs of its batches, with their judgements."""
    folder, _, evaluate = coded
    one, two = (evaluate("base", "--save-dir", f"saved-{n}", task="code_task.py:task", replicas=n) for n in (1, 2))
    assert one["metrics"] == two["metrics"]
    assert (one["workers"], two["workers"]) == (1, 2)
    parts = [
        read_record(folder / f"saved-2/worker-{rank}-of-2")["states"]["functions"]["harness/texts"] for rank in (0, 1)
    ]
    batches = [[bytes(content) for content in part.contents()] for part in parts]
    assert [len(each) for each in batches] == [2, 2]
    whole = results.read(folder / "saved-1").states["functions"]["harness/texts"]
    assert [bytes(content) for content in whole.contents()] == [*itertools.chain(*zip(*batches, strict=True))]
    judged = [json.loads(text)[1] for content in whole.contents() for text in json.loads(content.tobytes())]
    assert len(judged) == 25
    assert two["metrics"]["functions"]["pass@1"]["value"] == sum(judged) / 25
    assert 0 < sum(judged) < 25


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("subprocess.run(['sleep', '86399'])", r"rank 1.*document 2 of task 'functions'.*run_code=.*20 s"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("subprocess.run(['no-such-sandbox'])", "rank 1.*no-such-sandbox"),
    ],
)
def test_a_function_that_hangs_or_dies_in_one_of_two_workers(coded, fault, words):
    """The evaluation ends soon, and says why; a process that the function left is ended, too."""
    folder, _, evaluate = coded
    (folder / "broken_task.py").write_text(BROKEN.format(fault=fault))
    with pytest.raises(AssertionError, match=words):
        evaluate("base", task="broken_task.py:task", replicas=2)
    assert not [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "86399"]]


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


NOTING = """
import os, time
from sidecar import Task
from sidecar.lm import harness, model

def run_code(answer, document):
    number = int(document["prompt"])
    with open("calls", "a") as calls:
        calls.write(f"{os.getpid()} {number}\\n")
    time.sleep(0.03 if number >= 8 else 0)
    return len(answer) % 3 > 0

sets = harness("functions", include_path="tasks", tokenizer="base", run_code=run_code)
task = Task(build_model=model("base"), eval_sets=sets)
"""


def _kill_in_the_middle(folder, eval_set, daemon):
    """Kill a worker that answers one of the last batches, and return the batches that both had written by then."""
    end, calls = time.monotonic() + 390, folder / "calls"
    of_set = f"ckpts/.sidecar/*/evaluations/*/.finished-sets/{eval_set}"
    while time.monotonic() < end:
        asked = [line.split() for line in calls.read_text().splitlines()[:-1]] if calls.exists() else []
        files = list(folder.glob(f"{of_set}/batches-*-of-2/states.json"))
        if len(files) == 2 and any(int(number) >= 40 for _, number in asked):
            with contextlib.suppress(FileNotFoundError):  # it is replaced just now
                kept = [json.loads(file.read_text()) for file in files]
                psutil.Process(int(asked[-1][0])).kill()
                calls.write_text("")
                return {number for record in kept for number in record["batches"]}
        assert daemon.is_running()
        time.sleep(0.01)
    pytest.fail("nothing was written")


@pytest.mark.timeout(900)
def test_a_worker_is_killed_in_the_middle_of_a_set(recipe):
    """No program of a finished batch is asked for again, and the numbers have the bits of one worker alone."""
    folder, run, evaluate = recipe
    (folder / "noting_task.py").write_text(NOTING)
    task = (folder / "tasks/functions.yaml").read_text().replace("repeats: 5", "repeats: 1")
    (folder / "tasks/functions.yaml").write_text(task)
    rows = [{"prompt": f"{number:02}", "solution": "", "test": ""} for number in range(64)]
    (folder / "functions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _require_resumed(folder, run, evaluate, "functions")


PERPLEXITY = """
import os, time
from sidecar import Task
from sidecar.lm import model, perplexity

def logits(model, tokens):
    number = 67 - tokens.shape[1]  # of the longest window of the batch
    with open("calls", "a") as calls:
        calls.write(f"{os.getpid()} {number}\\n")
    time.sleep(0.2 if number >= 8 else 0)
    return model(tokens)

sets = perplexity("val/a.jsonl", by="domain", tokenizer="base", window=128, logits=logits)
task = Task(build_model=model("base"), eval_sets=sets, predictions=True)
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_is_killed_in_the_middle_of_a_perplexity(recipe, processes):
    """No window of a finished batch is run again, also by workers that are two processes each. Its rows are saved."""
    folder, run, evaluate = recipe
    (folder / "noting_task.py").write_text(PERPLEXITY)
    rows = [{"text": " a" * (number + 4), "domain": ("web", "code")[number % 2]} for number in range(64)]
    (folder / "val/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _require_resumed(folder, run, evaluate, "perplexity", f"processes_per_worker = {processes}\n")
    (resumed,) = folder.glob("ckpts/.sidecar/*/evaluations/*/result.json")
    one, other = (results.read(each).predictions["perplexity"] for each in (folder / "alone", resumed.parent))
    assert one["place"].tolist() == list(range(64))
    assert {name: column.tobytes() for name, column in one.items()} == {
        name: column.tobytes() for name, column in other.items()
    }


def _require_resumed(folder, run, evaluate, eval_set, settings=""):
    """Kill one of two workers of `noting_task.py`, and compare with one worker, and the calls of the second attempt."""
    shutil.copytree(folder / "base", folder / "ckpts/step-20")
    (folder / "alone.toml").write_text(settings)
    alone = evaluate("ckpts", "--config", "alone.toml", "--save-dir", "alone", task="noting_task.py:task")
    (folder / "calls").unlink()
    settings += 'task = "noting_task.py:task"\nreplicas = 2\nkeep_batches_seconds = 0.01\nhttp = "127.0.0.1:0"\n'
    (folder / "sidecar.toml").write_text(settings + "stop_after_step = 20\n")
    done = set()
    run(
        sys.executable,
        "-m",
        "sidecar",
        "run",
        "ckpts",
        meanwhile=lambda it: done.update(_kill_in_the_middle(folder, eval_set, it)),
    )
    assert len(done) >= 2
    numbers = {int(line.split()[1]) for line in (folder / "calls").read_text().splitlines()}
    again = {number // 8 for number in numbers}
    assert again.isdisjoint(done - {0})
    rows = json.loads(run(sys.executable, "-m", "sidecar", "history", "ckpts", "--json"))
    assert [each["kind"] for each in rows if each["status"] == "failed"] == ["worker_died"]
    (row,) = (each for each in rows if each["status"] == "succeeded")
    assert row["workers"] == 2
    for name, number in alone["metrics"][eval_set].items():
        assert {key: number[key] for key in ("hex", "lower", "upper")}.items() <= row["metrics"][eval_set][name].items()


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
