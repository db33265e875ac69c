"""Losses and perplexities of a tiny model: a plain loop, the harness, any number of workers."""

import math

import numpy as np
import pytest
from lm import tiny
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError
from sidecar.lm import model, perplexity


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        ([], {}, "files="),
        (["a.jsonl", "b.bin"], {}, "set of each"),
        ("a.bin", {"by": "domain"}, "by='domain'"),
        ("a.jsonl", {}, "tokenizer='path/to/folder'"),
        ("a.bin", {"window": 0}, "window=0"),
        ("a.bin", {"window": 4, "stride": 5}, "stride=5"),
    ],
)
def test_mistakes_are_told_at_once(files, options, words):
    """Before a file is read."""
    with pytest.raises(TaskError, match=words):
        perplexity(files, **options)


def results(folder, files, **options):
    """The results of 1 to 4 workers, which must have the same bits."""
    sets = perplexity(files, **{"window": 16, "batch_size": 3} | options)
    task = Task(build_model=model(folder / "base"), eval_sets=sets)
    found = [result_of_ranks(task, folder / "step-1.pt", ranks)["perplexity"] for ranks in (1, 2, 3, 4)]
    assert all(each == found[0] for each in found)
    return found[0]


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_perplexities_are_those_of_the_harness(made, lm_eval):
    """Windows of the model's length, for texts that are longer than a window and texts that are not."""
    rows = made.folder / "tasks" / "rows.jsonl"
    for window in (256, 32):
        found = results(made.folder, str(rows), tokenizer=made.folder / "base", window=window, by="kind")
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
        from transformers import AutoTokenizer

        lm = HFLM(
            pretrained=made.trained,
            tokenizer=AutoTokenizer.from_pretrained(made.folder / "base"),
            batch_size=1,
            max_length=window,
        )
        manager = TaskManager(include_path=str(made.folder / "tasks"), include_defaults=False)
        expected = lm_eval.simple_evaluate(model=lm, tasks=["rolling"], task_manager=manager)["results"]["rolling"]
        for name in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
            assert found.values[name].value == pytest.approx(expected[f"{name},none"], rel=1e-6)
        assert set(found.classes["bits_per_byte"]) == {"0", "1"}
        assert found.values["loss"].lower < found.values["loss"].value < found.values["loss"].upper


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_packed_tokens_against_a_plain_loop(made):
    """With a stride, each window has more context; a model of one's own needs a function."""
    import torch

    tokens = np.random.default_rng(3).integers(0, 300, 103).astype(np.uint16)
    tokens.tofile(made.folder / "val.bin")
    found = results(made.folder, str(made.folder / "val.bin"), stride=5)
    with torch.no_grad():
        losses = []
        for place in range(1, 103):
            end = 17 if place < 17 else 17 + 5 * -(-(place - 16) // 5)
            window = torch.from_numpy(tokens[max(min(end, 103) - 17, 0) : place].astype(np.int64))[None]
            scores = made.trained(window).logits[0, -1].log_softmax(-1)
            losses.append(-scores[int(tokens[place])].item())
    assert found.values["loss"].value == pytest.approx(math.fsum(losses) / 102, rel=1e-5)
    own = results(made.folder, str(made.folder / "val.bin"), stride=5, logits=lambda net, given: net(given)[0])
    assert own.values == found.values


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_does_not_fit_is_told(made):
    """Windows that are too long, tokens that it does not have, something else than logits."""
    np.full(600, 299, np.uint16).tofile(made.folder / "long.bin")
    np.full(40, 300, np.uint16).tofile(made.folder / "other.bin")
    for name, options, words in (
        ("long.bin", {"window": 512}, "window=256"),
        ("other.bin", {"window": 16}, "token 300, and the model has 300"),
        ("long.bin", {"window": 16, "logits": lambda _, given: given[:, 0]}, "logits=…"),
    ):
        task = Task(build_model=tiny.build_model, eval_sets=perplexity(str(made.folder / name), **options))
        with pytest.raises(EvaluationError, match=words):
            torch_evaluator(task)
