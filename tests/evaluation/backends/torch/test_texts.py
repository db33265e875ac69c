"""Labels and predictions that are lists of texts, measured by torchmetrics and `Mean`, with any number of workers."""

import pytest
from tests_torch import result_of_ranks

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Mean

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Metric .* will save all:UserWarning")]

WORDS = ("one", "two", "three", "four", "five", "six", "seven")
EXAMPLES, BATCH = 37, 8


def words(number):
    """Numbers of words of one example; their number differs from example to example."""
    import torch

    drawn = torch.randint(0, len(WORDS), (6 + number % 3,), generator=torch.Generator().manual_seed(number))
    return [int(word) for word in drawn]


def reference(number):
    """The right text: the copy of a model that takes the last word for the first one is wrong at times."""
    return " ".join(WORDS[0 if word == len(WORDS) - 1 else word] for word in words(number))


def copy(numbers):
    return [" ".join(WORDS[word] for word in one) for one in numbers]


def loader():
    from torch.utils.data import DataLoader

    data = [(words(number), reference(number)) for number in range(EXAMPLES)]
    return DataLoader(data, batch_size=BATCH, collate_fn=lambda items: tuple(map(list, zip(*items, strict=True))))


def task(metrics, references=lambda texts: texts):
    from torch import nn

    return Task(
        build_model=lambda: nn.Linear(1, 1),
        eval_sets={"test": loader},
        step=lambda _model, batch: (references(batch[1]), copy(batch[0])),
        metrics=metrics,
    )


@pytest.fixture
def checkpoint(tmp_path):
    import torch
    from torch import nn

    torch.save(nn.Linear(1, 1).state_dict(), tmp_path / "step-1.pt")
    return tmp_path / "step-1.pt"


def of_ranks(task, checkpoint):
    """The numbers by name, which are those of one, two and three workers."""
    results = [result_of_ranks(task, checkpoint, ranks)["test"] for ranks in (1, 2, 3)]
    assert results[0] == results[1] == results[2]
    return {name: float.fromhex(one.hex) for name, one in results[0].values.items()}


def test_errors_of_words_and_common_parts(checkpoint):
    """Word error rate, ROUGE and exact match of one set are those of one process."""
    from torchmetrics.text import WordErrorRate
    from torchmetrics.text.rouge import ROUGEScore

    def metrics():
        exact = Mean(lambda y, p: [one == other for one, other in zip(y, p, strict=True)], name="exact", goal="max")
        return [WordErrorRate(), ROUGEScore(rouge_keys=("rouge1", "rougeL")), exact]

    found = of_ranks(task(metrics), checkpoint)
    right, made = map(reference, range(EXAMPLES)), copy(map(words, range(EXAMPLES)))
    right = list(right)
    rate, rouge = WordErrorRate(), ROUGEScore(rouge_keys=("rouge1", "rougeL"))
    rate.update(made, right)
    rouge.update(made, right)
    assert found.pop("exact") == sum(map(str.__eq__, made, right)) / EXAMPLES
    assert found.pop("worderrorrate") == float(rate.compute())
    assert found == {name: float(value) for name, value in rouge.compute().items()}


def test_nested_references(checkpoint):
    """BLEU takes several references for each text."""
    from torchmetrics.text import BLEUScore

    found = of_ranks(task(lambda: [BLEUScore()], lambda texts: [[text] for text in texts]), checkpoint)
    metric = BLEUScore()
    metric.update(copy(map(words, range(EXAMPLES))), [[reference(number)] for number in range(EXAMPLES)])
    assert found == {"bleuscore": float(metric.compute())}
    assert 0 < found["bleuscore"] < 1


@pytest.mark.parametrize("name", ["BLEUScore", "SacreBLEUScore", "CHRFScore"])
def test_flat_references_are_refused(checkpoint, name):
    """With them torchmetrics takes each character for a reference, and gives 0 without a word."""
    from torchmetrics import text

    with pytest.raises(EvaluationError, match=r"\[\[text\] for text in y\]"):
        result_of_ranks(task(lambda: [getattr(text, name)()]), checkpoint, 2)
