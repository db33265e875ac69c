"""Datasets of Hugging Face as they are: map-style, streamed, and tokenised with a collator that pads."""

import functools
from types import SimpleNamespace

import pytest
from evaluation.backends.torch import models
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.task import EvalSet
from sidecar.metrics import Accuracy

pytestmark = pytest.mark.torch

EXAMPLES = 29


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No network, and no cache outside the test's folder."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def rows():
    """Sequences of 1 to 7 tokens, whose label is the parity of their length."""
    return {
        "input_ids": [[1 + (n + k) % 9 for k in range(1 + n % 7)] for n in range(EXAMPLES)],
        "labels": [n % 2 for n in range(EXAMPLES)],
    }


def mapped(**changes):
    from datasets import Dataset

    return Dataset.from_dict(rows() | changes)


def net():
    import torch
    from torch import nn

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(10, 4, padding_idx=0), nn.Linear(4, 2)

        def forward(self, input_ids, attention_mask=None):
            if attention_mask is None:
                attention_mask = torch.ones_like(input_ids)
            total = (self.embedding(input_ids) * attention_mask[..., None]).sum(1)
            return self.head(total / attention_mask.sum(1, keepdim=True))

    return Bag()


def padded(examples):
    """A collator as `DataCollatorWithPadding`: tensors of the longest sequence of the batch."""
    import torch

    longest = max(len(example["input_ids"]) for example in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    for row, example in enumerate(examples):
        ids[row, : len(example["input_ids"])] = torch.as_tensor(example["input_ids"])
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": torch.tensor([int(example["labels"]) for example in examples]),
    }


checkpoint = models.checkpoint_of(net)


@pytest.fixture
def truth(checkpoint):
    """Loss and accuracy of all examples as one padded batch."""
    import torch

    model = net()
    model.load_state_dict(torch.load(checkpoint))
    whole = rows()
    batch = padded([{name: column[n] for name, column in whole.items()} for n in range(EXAMPLES)])
    labels = batch.pop("labels")
    with torch.inference_mode():
        predictions = model(**batch)
        loss = torch.nn.functional.cross_entropy(predictions, labels).item()
    return loss, (predictions.argmax(1) == labels).sum().item() / EXAMPLES


def task(source, **changes):
    from torch import nn

    given = {
        "build_model": net,
        "eval_sets": {"test": source},
        "metrics": lambda: [Accuracy()],
        "loss": nn.CrossEntropyLoss(),
        "batch_size": 4,
    }
    return Task(**given | changes)


def assert_right(given, checkpoint, truth):
    results = [result_of_ranks(given, checkpoint, ranks)["test"] for ranks in (1, 2, 3, 4)]
    assert all(result.values == results[0].values for result in results)
    assert results[0].values["loss"].value == pytest.approx(truth[0], rel=1e-6)
    assert results[0].values["accuracy"].value == truth[1]


@pytest.mark.parametrize("kind", ["map", "torch", "stream", "stream, torch"])
@pytest.mark.drawn(1)
def test_a_tokenised_set_with_a_collator_that_pads(kind, checkpoint, truth):
    from torch.utils.data import DataLoader

    def source():
        data = mapped()
        data = data.to_iterable_dataset(num_shards=3) if "stream" in kind else data
        data = data.with_format("torch") if "torch" in kind else data
        return DataLoader(data, batch_size=4, collate_fn=padded)

    assert_right(task(source), checkpoint, truth)


@pytest.mark.parametrize("stream", [False, True])
def test_a_dataset_itself(stream, checkpoint, truth):
    """Padded beforehand, it needs no collator: batches are dicts with `labels`."""

    def source():
        longest = {"input_ids": [ids + [0] * (7 - len(ids)) for ids in rows()["input_ids"]]}
        mask = {"attention_mask": [[int(token > 0) for token in ids] for ids in longest["input_ids"]]}
        data = mapped(**longest, **mask).with_format("torch")
        return data.to_iterable_dataset() if stream else data

    assert_right(task(source), checkpoint, truth)


@pytest.mark.parametrize("stream", [False, True])
def test_prepare_gets_an_example_as_a_dict(stream, checkpoint, truth):
    import torch

    def prepare(example):
        ids = torch.zeros(7, dtype=torch.long)
        ids[: len(example["input_ids"])] = torch.tensor(example["input_ids"])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": example["labels"]}

    source = (lambda: mapped().to_iterable_dataset()) if stream else mapped
    assert_right(task(EvalSet(source, prepare=prepare)), checkpoint, truth)


def test_a_dict_of_splits_is_refused_by_name():
    from datasets import DatasetDict

    with pytest.raises(EvaluationError, match="'train', 'test'"):
        result_of_ranks(task(lambda: DatasetDict(train=mapped(), test=mapped())), None, 1)


def test_ragged_sequences_need_a_collator():
    with pytest.raises(EvaluationError, match="collate_fn"):
        result_of_ranks(task(lambda: mapped().with_format("torch")), None, 1)


@pytest.mark.parametrize("kind", ["encoder and decoder", "decoder"])
def test_models_that_use_the_labels_inside(kind):
    """BART would take its inputs for those of the decoder; a model of images and texts predicts the next token."""
    transformers = pytest.importorskip("transformers")
    import torch
    from torch import nn

    if kind == "encoder and decoder":
        sizes = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
        feed_forward = {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
        config = transformers.BartConfig(vocab_size=20, d_model=8, max_position_embeddings=16, **sizes, **feed_forward)
        build = functools.partial(transformers.BartForConditionalGeneration, config)
    else:

        class TinyForConditionalGeneration(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Embedding(20, 20)

            def forward(self, input_ids, labels=None):
                return SimpleNamespace(logits=self.head(input_ids), labels=labels)

        build = TinyForConditionalGeneration
    x = torch.randint(3, 20, (21, 5), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": one, "labels": one.flip(0)} for one in x]
    given = {
        "build_model": build,
        "eval_sets": {"test": lambda: torch.utils.data.DataLoader(rows, 4)},
        "loss": nn.CrossEntropyLoss(),
    }
    line = "model(**batch).logits" if kind == "encoder and decoder" else "batch['labels'][:, 1:]"
    with pytest.raises(EvaluationError) as caught:
        torch_evaluator(Task(**given))
    assert line in str(caught.value)
