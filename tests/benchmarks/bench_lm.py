"""lm-evaluation-harness with one and two processes, and the same tasks here with one and two workers."""

import contextlib
import json
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

import machine
import psutil
from lm import tiny
from programs import HERE, Child, environ, scratch
from table import Figure, Table
from worker_group import Place, WorkerGroup

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-lm" / "bin" / "python"
PAGE = ROOT / "docs" / "how-to" / "language-models.md"
_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ACCELERATE_USE_CPU": "true",
    "DISABLE_MULTIPROC": "1",
    "SIDECAR_YIELD_SECONDS": "0",
}
TASKS = ("choice", "shots", "matthews", "continued", "rolling", "voted")
HOW = """103 documents, which neither 2 nor 8 divides, in tasks of local YAML and JSON lines, and a Llama of two
layers that was trained for seconds. lm-eval in one process and under `torchrun --nproc-per-node 2`, in batches of 8;
`sidecar eval` on the same folder with one and two workers. Numbers that another number of processes changed are bold.
Throughput: CPU seconds of one thread for 927 requests to a Llama with 4 layers of width 512, in pairs: the harness's
own `HFLM.loglikelihood`, which gets its model loaded and its requests built, and whole warm evaluations of worker
processes, from the file of the checkpoint to the harness's numbers. Two workers against one: CPU seconds of one
worker over those of the busier of two. Memory: the peak of a worker process that evaluates a Llama of 403 MB, from a
folder of torch.distributed.checkpoint."""


def measure(quick):
    with scratch() as folder:
        made(folder)
        numbers = [_by_harness(folder, 1), _by_harness(folder, 2), *(_by_workers(folder, count) for count in (1, 2))]
    rows = [
        (name, *cells) for name in numbers[0] if (cells := _cells([each.get(name) for each in numbers])) is not None
    ]
    if [each for each in numbers[2] if numbers[2][each] != numbers[3][each]]:
        raise RuntimeError(f"one and two workers differ: {numbers[2]}, {numbers[3]}")
    differing = sum("**" in row[2] for row in rows)
    with scratch() as folder:
        made(folder, width=512, layers=4, steps=0, documents=309)
        loop, two, note = _throughput(folder, 2 if quick else 5)
    with scratch() as folder:
        memory = _memory(folder)
    figures = [
        Figure("one worker against the harness's loop, requests in a CPU second", loop, 0.95, "at least", " ×"),
        Figure("memory of each of two tensor parallel processes against one", memory, 0.6, "at most", " ×"),
        Figure("two workers against one, CPU seconds of the busier one", two, 1.8, "at least", " ×"),
    ]
    notes = [f"{differing} of {len(rows)} numbers of lm-eval changed with the number of processes.", note]
    columns = ("number", "lm-eval, 1 process", "2 processes", "1 worker", "2 workers")
    table = Table("Language models: the harness with 1 and 2 processes", HOW, columns, rows, figures, notes)
    if not quick:
        write_page(table)
    return table


def write_page(table):
    """Write the table of differences into the page about language models."""
    body = table.markdown().split("\n\n")[2]
    block = f"<!-- measured by `make bench ARGS=lm` -->\n\n{body}\n\n<!-- end -->"
    text, found = re.subn(
        r"<!-- measured by `make bench ARGS=lm` -->.*?<!-- end -->", lambda _: block, PAGE.read_text(), flags=re.DOTALL
    )
    assert found == 1, f"{PAGE} has one place for the table"
    PAGE.write_text(text)


def made(folder, width=32, layers=2, steps=150, documents=103):
    """Write a model with its tokenizer, and tasks. It is trained on sentences such as those of the tasks."""
    import torch
    from transformers import AutoModelForCausalLM

    config = tiny.config()
    config.update({"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers})
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    tokenizer = tiny.tokenizer(folder / "base")
    draw, optimizer = random.Random(1), torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(steps):
        texts = [
            "".join(tiny.sentence(draw, draw.randint(3, 9)) + draw.choice([": ", "\n", " "]) for _ in range(9))
            for _ in range(8)
        ]
        tokens = torch.tensor([tokenizer(text).input_ids[:64] for text in texts])
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder / "base")
    torch.save({"model": model.state_dict()}, folder / "step-1.pt")
    tiny.write_tasks(folder / "tasks", documents=documents)


def _variables(folder):
    return environ(**_VARIABLES, HF_HOME=str(folder / "cache"), PYTHONPATH=str(ROOT))


def _run(folder, *words):
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env=_variables(folder), capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        raise RuntimeError(f"{words} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def _by_harness(folder, ranks):
    """The numbers of the harness, by TASK/METRIC."""
    out = folder / f"ranks-{ranks}.json"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks) if ranks > 1 else ()
    _run(folder, PYTHON, *launcher, HERE / "children" / "lm_ranks.py", folder, out, *TASKS)
    found = {}
    for task, numbers in json.loads(out.read_text()).items():
        for key, number in numbers.items():
            metric, _, of_filter = key.partition(",")
            if of_filter and isinstance(number, float):
                found[f"{task}/{metric}" + ("" if of_filter == "none" else f",{of_filter}")] = number
    return found


def _by_workers(folder, workers):
    (folder / "sidecar.toml").write_text(
        f'worker_python = "{PYTHON}"\n[lm]\nmodel = "{folder}/base"\ntasks = {json.dumps(TASKS)}\n'
        f'include_path = "{folder}/tasks"\n'
    )
    words = ("-m", "sidecar", "eval", folder / "base", "--replicas", workers, "--json")
    metrics = json.loads(_run(folder, sys.executable, *words))["metrics"]
    return {f"{task}/{name}": each["value"] for task, numbers in metrics.items() for name, each in numbers.items()}


def _cells(numbers):
    """Cells of a row: with all digits, and bold where the number of processes changed it."""
    if None in numbers:
        return None
    shown = [f"{number:.12g}" for number in numbers]
    return tuple(
        f"**{text}**" if place in (1, 3) and numbers[place] != numbers[place - 1] else text
        for place, text in enumerate(shown)
    )


def _throughput(folder, rounds):
    """The harness's CPU time over that of a worker; that of one worker over the busier of two; and notes."""
    cores = machine.cpus()[:2]
    more = _VARIABLES | {"HF_HOME": str(folder / "cache"), "BENCH_LM": str(folder)}
    places = [Place(frozenset({core}), interpreter=str(PYTHON)) for core in cores]
    path = str(folder / "step-1.pt")
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(
            Child("lm_loop.py", folder, "choice", folder=folder, cores={cores[0]}, interpreter=PYTHON, **more)
        )
        groups = [
            stack.enter_context(
                WorkerGroup(folder / str(count), "lm_choice.py", places[:count], env=more, framework="torch")
            )
            for count in (1, 2)
        ]
        found = []
        for _ in range(rounds + 1):
            answer = loop.ask()
            alone, both = (max(_cpu_seconds(group, path)) for group in groups)
            found.append((answer["seconds"], alone, both))
    of_loop, of_one, of_two = zip(*found[1:], strict=True)  # the first is cold
    loop_seconds, one_seconds, two_seconds = map(statistics.median, (of_loop, of_one, of_two))
    note = (
        f"CPU seconds, medians of {rounds} pairs: the harness's loop {loop_seconds:.3f}, one worker {one_seconds:.3f}, "
        f"the busier of two workers {two_seconds:.3f}, for {answer['requests']} requests. Wall time: not measured."
    )
    pairs = [
        statistics.median(one / other for one, other in each)
        for each in (zip(of_loop, of_one, strict=True), zip(of_one, of_two, strict=True))
    ]
    return *pairs, note


def _memory(folder):
    """Peak of a process of two that divide a model, over that of one which holds it."""
    script = ROOT / "tests" / "evaluation" / "backends" / "torch" / "divided_memory.py"
    peaks = [json.loads(_run(folder, sys.executable, script, folder, count, "tensor")) for count in (1, 2)]
    return max(peaks[1]) / max(peaks[0])


def _cpu_seconds(group, path):
    """CPU seconds of each worker process for one evaluation."""
    processes = [psutil.Process(pid) for pid in group.pids]
    before = [sum(process.cpu_times()[:2]) for process in processes]
    group.evaluate(path)
    return [sum(process.cpu_times()[:2]) - earlier for process, earlier in zip(processes, before, strict=True)]
