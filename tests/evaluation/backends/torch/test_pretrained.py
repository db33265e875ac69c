"""Folders of Hugging Face that need a line of the user: adapters, several models, parts that are left out."""

import json
import re
import sys
import types
from pathlib import Path

import pytest
from evaluation.backends.torch.weights import same, save_file, vit
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def adapted(seed=1):
    """A model as peft builds it: a frozen base and two small matrices, whose names hold that of the adapter."""
    import torch
    from torch import nn

    class PeftModel(nn.Module):
        __module__ = "peft.peft_model"

        def __init__(self):
            super().__init__()
            self.active_adapter, self.peft_config = "default", {"default": types.SimpleNamespace(lora_alpha=16)}
            self.base_layer = nn.Linear(4, 3)
            self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
            self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 3, bias=False)})

        def forward(self, x):
            return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))

    torch.manual_seed(3)
    base = nn.Linear(4, 3)
    torch.manual_seed(seed)
    model = PeftModel()
    model.base_layer.load_state_dict(base.state_dict())
    return model


def plain():
    """A model without an adapter."""
    from torch import nn

    return nn.Linear(4, 3)


def imitated_peft():
    """The class and the three functions that the backend calls, as peft 0.21 has them."""
    from safetensors.torch import load_file

    def get(model):
        return {n.replace(".default", ""): v for n, v in model.state_dict().items() if "lora_" in n}

    def put(model, weights):
        values = {re.sub(r"(lora_[AB])", r"\1.default", n): v for n, v in weights.items()}
        return model.load_state_dict(values, strict=False)

    peft = types.ModuleType("peft")
    peft.load_peft_weights = lambda path, device: load_file(f"{path}/adapter_model.safetensors", device)
    peft.PeftConfig = types.SimpleNamespace(
        from_pretrained=lambda path: types.SimpleNamespace(**json.loads(Path(path, "adapter_config.json").read_text()))
    )
    peft.get_peft_model_state_dict, peft.set_peft_model_state_dict = get, put
    return peft


def task(build, **changes):
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(2))
    given = {"eval_sets": {"test": lambda: TensorDataset(x, x[:, 0].long() % 2)}, "loss": nn.CrossEntropyLoss()}
    return Task(build_model=build, batch_size=4, **given, **changes)


def refused(path, build, **changes):
    """The message of a refusal."""
    with pytest.raises(EvaluationError) as caught:
        torch_evaluator(task(build, **changes)).restore(str(path))()
    return str(caught.value)


def test_an_adapter_alone(tmp_path, monkeypatch):
    """A plain model is refused; one of peft gets the adapter, all of its values or none."""
    import torch
    from safetensors.torch import save_file as write

    monkeypatch.setitem(sys.modules, "peft", peft := imitated_peft())
    trained, folder = adapted(seed=9), tmp_path / "checkpoint-20"
    folder.mkdir()
    values = {name: value.clone() for name, value in peft.get_peft_model_state_dict(trained).items()}
    write(values, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"lora_alpha": 16}))
    assert "checkpoint-20 holds only an adapter of peft" in refused(folder, plain)
    for _ in range(2):
        evaluator = torch_evaluator(task(adapted))
        evaluator.restore(str(folder))()
        assert same(evaluator.model, trained)
    given = task(adapted)
    x, y = given.eval_sets["test"]().tensors
    with torch.no_grad():
        right = torch.nn.functional.cross_entropy(trained.double()(x.double()), y).item()
    found = [result_of_ranks(given, folder, ranks)["test"].values for ranks in (1, 2, 3)]
    assert found[1:] == found[:1] * 2
    assert found[0]["loss"].value == pytest.approx(right, rel=1e-6)
    for text in ({"lora_alpha": 17}, {"lora_alpha": 16, "use_rslora": True}):
        (folder / "adapter_config.json").write_text(json.dumps(text))
        assert re.search("lora_alpha = 17.*16|use_rslora = True.*None", refused(folder, adapted))
    (folder / "adapter_config.json").write_text(json.dumps({"lora_alpha": 16}))
    write({n: v for n, v in values.items() if "lora_A" in n}, folder / "adapter_model.safetensors")
    assert "lora_B" in refused(folder, adapted)


@pytest.mark.parametrize("safe", [True, False])
def test_two_models_that_accelerate_saved(tmp_path, safe):
    """The first one is restored, and the line for the second is told if that is what the task builds."""
    import accelerate
    import safetensors.torch
    import torch
    from torch import nn

    def small():
        return nn.Linear(4, 3)

    def large():
        return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))

    first, second = small(), large()
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.prepare(first, second)
    accelerator.save_state(str(tmp_path / "checkpoint-5"), safe_serialization=safe)
    evaluator = torch_evaluator(task(small))
    evaluator.restore(str(tmp_path / "checkpoint-5"))()
    assert same(evaluator.model, first)
    name = "model_1.safetensors" if safe else "pytorch_model_1.bin"
    assert any(name in note for note in evaluator._notes)
    message = refused(tmp_path / "checkpoint-5", large)
    (code,) = re.findall(r"Task\((restore=.*)\)$", message)
    found = eval(f"dict({code})", {"safetensors": safetensors, "torch": torch})
    evaluator = torch_evaluator(task(large, **found))
    evaluator.restore(str(tmp_path / "checkpoint-5"))()
    assert same(evaluator.model, second)


def test_what_from_pretrained_makes_up_or_drops(tmp_path):
    """Refused, unless the task names it."""
    from safetensors.torch import load_file

    from sidecar.evaluation.backends.torch.pretrained import load_by_transformers

    model, folder = vit(), tmp_path / "checkpoint-5"
    model.save_pretrained(folder)
    values = load_file(folder / "model.safetensors")
    values["more.weight"] = values.pop("classifier.bias")
    from safetensors.torch import save_file as write

    write(values, folder / "model.safetensors", metadata={"format": "pt"})
    for allowed in ({}, {"ignore": ["more."]}, {"from_build_model": ["classifier.bias"]}):
        with pytest.raises(EvaluationError) as caught:
            load_by_transformers(vit(), folder, **allowed)
        assert ("classifier.bias" if "from_build_model" not in allowed else "more.weight") in str(caught.value)
    found = load_by_transformers(vit(), folder, ignore=["more."], from_build_model=["classifier.bias"])
    assert "classifier.bias" not in found
    assert len(found) == len(model.state_dict()) - 1


def test_surplus_values_of_every_format(tmp_path):
    """Note them in safetensors, shards and `pytorch_model.bin`, as in a file of torch.save."""
    import torch
    from huggingface_hub import save_torch_state_dict
    from torch import nn

    def build():
        return nn.Linear(4, 3)

    values = {**build().state_dict(), "lora_A": torch.ones(2)}
    for number, options in enumerate(({}, {"max_shard_size": 50}, {"safe_serialization": False})):
        (folder := tmp_path / f"checkpoint-{number}").mkdir()
        save_torch_state_dict(values, folder, **options)
        assert "only there: lora_A" in refused(folder, build)
        assert "only there: lora_A" in refused(folder, build, ignore=["lora_B"])
        torch_evaluator(task(build, ignore=["lora_"])).restore(str(folder))()
    file = save_file(nn.Sequential(build(), build()), tmp_path / "m.safetensors")
    assert "Task(checkpoint='0') or Task(checkpoint='1')" in refused(file, build)


def language_model():
    """A tiny causal language model, whose embedding is its last layer, too."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 20, "n_positions": 16}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


@pytest.mark.parametrize("form", ["pretrained", "flat", "nested"])
def test_a_language_model_in_every_form(tmp_path, form):
    """Restore saves of the Trainer and of torch.distributed.checkpoint: the loss of a plain loop, by 1 to 3 ranks."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.utils.data import DataLoader

    model = language_model()
    with torch.no_grad():
        model.transformer.wte.weight.mul_(20)
    if form == "pretrained":
        model.save_pretrained(tmp_path / "checkpoint-5")
    else:
        values = model.state_dict()
        dcp.save(values if form == "flat" else {"model": values, "step": 5}, checkpoint_id=tmp_path / "checkpoint-5")
    tokens = torch.randint(0, 20, (37, 9), generator=torch.Generator().manual_seed(4))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    given = Task(
        build_model=language_model,
        eval_sets={"held_out": lambda: DataLoader(rows, batch_size=4)},
        step=lambda model, batch: (batch["labels"][:, 1:], model(input_ids=batch["input_ids"]).logits[:, :-1]),
        loss=nn.CrossEntropyLoss(),
    )
    found = [result_of_ranks(given, tmp_path / "checkpoint-5", n)["held_out"].values["loss"].value for n in (1, 2, 3)]
    with torch.no_grad():
        logits = model.double().eval()(input_ids=tokens).logits[:, :-1]
        expected = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()
    assert found == [pytest.approx(expected, rel=1e-6)] * 3
    assert len(set(found)) == 1
