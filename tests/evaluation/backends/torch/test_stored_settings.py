"""Settings with which a checkpoint was saved, and which change numbers, but no shapes."""

# ruff: noqa: ARG002 - save_hyperparameters() reads the arguments

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from tests_torch import result_of_ranks

from sidecar import Task
from sidecar.evaluation.backends.torch.stored_settings import differing_settings
from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def data():
    import torch
    from torch.utils.data import TensorDataset

    x = torch.randn(37, 8, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x[:, :3].argmax(1))


@dataclass
class Config:
    """Settings of a model, as nanoGPT writes them."""

    heads: int = 4
    dropout: float = 0.0


def by_config(config=None, scale=1.0, **held):
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config, self.scale = config, 1.0
            self.attention, self.head = nn.MultiheadAttention(8, config.heads), nn.Linear(8, 3)

        def forward(self, x):
            x = torch.stack([x, x.flip(1)])
            return self.head(self.attention(x, x, x)[0][0]) * self.scale

    torch.manual_seed(5)
    net = Net(config or Config(**held))
    net.scale = scale
    return net


def task(build, **changes):
    from torch import nn

    given = {"build_model": build, "eval_sets": {"test": data}, "loss": nn.CrossEntropyLoss(), "batch_size": 8}
    return Task(**given | changes)


def right(model):
    import torch

    x, y = data().tensors
    return torch.nn.functional.cross_entropy(model(x), y).item()


@pytest.mark.parametrize("place", ["model_args", "args"])
def test_settings_that_give_other_numbers_are_refused(tmp_path, place):
    """The number of heads divides the same weights in another way. The line of the message is right."""
    import torch

    model = by_config(heads=2)
    saved = {"heads": 2, "dropout": 0.0, "lr": 0.1}
    given = saved if place == "model_args" else SimpleNamespace(**saved)
    torch.save({"model": model.state_dict(), place: given, "iter_num": 5}, tmp_path / "step-5.pt")
    with pytest.raises(EvaluationError, match=r"heads = 2 \(4 in") as caught:
        result_of_ranks(task(by_config), tmp_path / "step-5.pt", 1)
    assert caught.value.kind == "mismatch"
    assert "with heads=2 in the Config" in str(caught.value)
    for ranks in (1, 3):
        found = result_of_ranks(task(lambda: by_config(heads=2)), tmp_path / "step-5.pt", ranks)["test"]
        assert found.values["loss"].value == pytest.approx(right(model), rel=1e-6)
        assert not found.notes


def test_settings_that_change_nothing(tmp_path):
    """A dropout of training is none in an evaluation."""
    import torch

    model = by_config(dropout=0.1)
    torch.save({"model": model.state_dict(), "config": {"heads": 4, "dropout": 0.1}}, tmp_path / "step-5.pt")
    found = result_of_ranks(task(by_config), tmp_path / "step-5.pt", 2)["test"]
    assert found.values["loss"].value == pytest.approx(right(model), rel=1e-6)
    assert not found.notes


@pytest.mark.parametrize("way", ["more than the class", "another signature"])
def test_settings_of_a_model_that_is_built_in_another_way_are_noted(tmp_path, way):
    """`build_model` changes what the class made, or the class wants something else than its settings."""
    import torch
    from torch import nn

    class Outer(nn.Module):
        def __init__(self, one, other):
            super().__init__()
            self.one, self.other, self.config = one, other, one.config

        def forward(self, x):
            return self.one(x) + self.other(x)

    def build():
        return by_config(scale=2.0) if way == "more than the class" else Outer(by_config(), nn.Linear(8, 3))

    model = build()
    torch.save({"model": model.state_dict(), "config": {"heads": 4, "dropout": 0.1}}, tmp_path / "step-5.pt")
    found = result_of_ranks(task(build), tmp_path / "step-5.pt", 1)["test"]
    assert found.values["loss"].value == pytest.approx(right(model), rel=1e-6)
    (note,) = found.notes
    assert "dropout = 0.1 (0.0 in the model)" in note
    assert "is not known" in note


def test_hyperparameters_of_lightning(tmp_path):
    """A temperature of training; a learning rate is no reason."""
    import pytorch_lightning as lightning
    import torch
    from torch import nn

    class Module(lightning.LightningModule):
        def __init__(self, temperature=1.0, lr=0.1):
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Linear(8, 3)

        def validation_step(self, batch, _):
            scaled = self.net(batch[0]) / self.hparams.temperature
            self.log("val_loss", nn.functional.cross_entropy(scaled, batch[1]))

    own = {"loss": None}
    for name, settings in (("a", {"temperature": 0.2, "lr": 0.3}), ("b", {"temperature": 1.0, "lr": 0.3})):
        model = Module(**settings)
        torch.save({"state_dict": model.state_dict(), "hyper_parameters": settings}, tmp_path / f"{name}.ckpt")
    with pytest.raises(EvaluationError, match=r"lambda: Module\(temperature=0\.2, lr=0\.3\)"):
        result_of_ranks(task(Module, **own), tmp_path / "a.ckpt", 1)
    assert not result_of_ranks(task(Module, **own), tmp_path / "b.ckpt", 1)["test"].notes
    assert not result_of_ranks(task(lambda: Module(temperature=0.2), **own), tmp_path / "a.ckpt", 1)["test"].notes


def test_what_tells_of_the_file_alone_is_no_setting(tmp_path):
    """Another release of transformers saved the model: two more models would be built for each worker."""
    from torch import nn

    model = nn.Linear(8, 3)
    model.config = SimpleNamespace(heads=4, transformers_version="5.14.1", _name_or_path="")
    stored = {"heads": 4, "transformers_version": "4.40.0", "_name_or_path": "bert-base-uncased"}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert differing_settings(model, None, tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps(stored | {"heads": 2}))
    assert differing_settings(model, None, tmp_path).stored == {"heads": 2}


def test_the_configuration_of_transformers(tmp_path):
    """`save_pretrained` writes it next to the weights."""
    transformers = pytest.importorskip("transformers")
    import torch

    def build(heads=2):
        settings = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 20, "num_labels": 3}
        torch.manual_seed(5)
        return transformers.BertForSequenceClassification(
            transformers.BertConfig(num_attention_heads=heads, initializer_range=1.0, **settings)
        )

    def texts():
        x = torch.randint(0, 20, (21, 5), generator=torch.Generator().manual_seed(1))
        return [{"input_ids": one, "labels": one[0] % 3} for one in x]

    build(4).save_pretrained(tmp_path / "checkpoint-5")
    sets = {"eval_sets": {"test": lambda: torch.utils.data.DataLoader(texts(), 4)}, "batch_size": None}
    with pytest.raises(EvaluationError, match=r"num_attention_heads = 4 \(2"):
        result_of_ranks(task(build, **sets), tmp_path / "checkpoint-5", 1)
    assert not result_of_ranks(task(lambda: build(4), **sets), tmp_path / "checkpoint-5", 2)["test"].notes
