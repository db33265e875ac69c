"""Write what `sidecar demo --framework lm` evaluates with: texts that every Python has, tasks of them, and settings.

The domains are the sources of the standard library and the chapters of `pydoc`. One document in eight is held out.
`run` calls this for the files; `train_lm` takes the texts of training. It must not import a framework.
"""

import json
import random
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sidecar.commands.demo.folder import Folder

CODE: Final = "code"
PROSE: Final = "prose"

_EVERY: Final = 8
_TEXTS: Final = 24  # of each domain, to measure perplexity
_TEXT_CHARACTERS: Final = 2000
_QUESTIONS: Final = 61  # of each domain: a prime number, so that neither workers nor batches divide it
_CHOICES: Final = 4
_LINES: Final = 6  # before the one that is asked for
_LINE_CHARACTERS: Final = range(16, 72)

_SETTINGS: Final = """\
[lm]                        # no Python is needed for these evaluations
model = "auto"              # config.json and the tokenizer come with each checkpoint
tasks = {tasks}
include_path = {data}

[lm.perplexity]
files = {files}
by = "domain"
window = 128
name = "texts"
"""


def write(folder: Folder) -> None:
    """Write the texts and the tasks below `data`, and `sidecar.toml`."""
    data, tasks = folder.root / "data", []
    draw = random.Random(5)  # noqa: S311 - the same questions each time
    data.mkdir()
    rows = []
    for domain, texts in _documents(held_out=True).items():
        questions = _questions(texts, draw)
        _write_rows(data / f"next_line_{domain}.jsonl", questions)
        tasks.append(f"next_line_{domain}")
        (data / f"{tasks[-1]}.yaml").write_text(json.dumps(_task(tasks[-1], data), indent=1))  # JSON is YAML
        pieces = [text[begin : begin + _TEXT_CHARACTERS] for text in texts for begin in (0, _TEXT_CHARACTERS)]
        rows += [{"domain": domain, "text": text} for text in pieces if text][:_TEXTS]
    _write_rows(data / "held_out.jsonl", rows)
    files = str(data / "held_out.jsonl")
    folder.settings.write_text(
        _SETTINGS.format(tasks=json.dumps(tasks), data=json.dumps(str(data)), files=json.dumps(files))
    )


def training_texts() -> list[str]:
    """Return the texts to train on."""
    return [text for texts in _documents(held_out=False).values() for text in texts]


def _documents(*, held_out: bool) -> dict[str, list[str]]:
    """Return the documents of each domain that are held out, or the others."""
    from pydoc_data.topics import topics  # noqa: PLC0415 - 0.5 MB, which only this demo needs

    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    found = {
        CODE: [path.read_text(encoding="utf-8", errors="replace") for path in library],
        PROSE: [topics[name] for name in sorted(topics)],
    }
    return {
        domain: [text for number, text in enumerate(texts) if (number % _EVERY == 0) == held_out]
        for domain, texts in found.items()
    }


def _questions(texts: list[str], draw: random.Random) -> list[dict[str, Any]]:
    """Return multiple-choice questions: some lines, and which of four lines is the next one."""
    places = [place for text in texts for place in _places(text.splitlines())]
    draw.shuffle(places)
    questions = []
    for before, line in places[:_QUESTIONS]:
        others = draw.sample([other for _, other in places if other != line], _CHOICES - 1)
        answer = draw.randrange(_CHOICES)
        questions.append({"lines": before, "choices": [*others[:answer], line, *others[answer:]], "answer": answer})
    return questions


def _places(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines that can be asked for, each with those before it."""
    for number in range(_LINES, len(lines)):
        if len(lines[number].strip()) in _LINE_CHARACTERS:
            yield "\n".join(lines[number - _LINES : number]), "\n" + lines[number]


def _task(name: str, data: Path) -> Mapping[str, Any]:
    """Return a task of lm-evaluation-harness."""
    mean = {"aggregation": "mean", "higher_is_better": True}
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data / f"{name}.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{lines}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"} | mean, {"metric": "acc_norm"} | mean],
        "metadata": {"version": 1.0},
    }


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
