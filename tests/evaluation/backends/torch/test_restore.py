"""Restore what real libraries saved, bit by bit, or refuse it with the names that differ."""

import pytest
from evaluation.backends.torch.weights import (
    net,
    restored,
    same,
    save_bin_shards,
    save_compiled,
    save_distributed,
    save_file,
    save_model,
    save_shards,
    save_wrapped,
    tied_net,
    vit,
)

from sidecar.evaluation.failures import EvaluationError

pytestmark = pytest.mark.torch

SAVES = {
    "m.safetensors": save_file,
    "tied.safetensors": save_model,
    "checkpoint-5": save_shards,
    "checkpoint-6": save_bin_shards,
    "m.pt": save_wrapped,
    "compiled.pt": save_compiled,
    "step-7": save_distributed,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile imports torch.jit
@pytest.mark.parametrize("name", SAVES)
@pytest.mark.parametrize("build", [net, tied_net])
def test_the_bits_of_real_writers(tmp_path, name, build):
    """Parameters and buffers; a tied weight that is stored once is both."""
    if build is tied_net and name == "m.safetensors":
        pytest.skip("safetensors refuses to store one memory under two names")
    model = build(seed=1)
    saved, other = SAVES[name](model, tmp_path / name), build(seed=2)
    assert saved.suffix or name == "step-7" or build is tied_net or len(list(saved.iterdir())) > 2
    assert not same(model, other)
    assert restored(saved, other) == ()
    assert same(model, other)


@pytest.mark.seconds
def test_a_model_that_two_processes_divide(tmp_path):
    """Each of them reads its own part of every format, with rows that cannot be shared equally, and a tied weight."""
    import subprocess
    import sys

    from evaluation.backends.torch import divided_restore

    model = divided_restore.model(seed=1)
    for name, save in SAVES.items():
        if name not in ("m.safetensors", "compiled.pt"):
            save(model, tmp_path / name)
    command = (sys.executable, "-W", "ignore", divided_restore.__file__, str(tmp_path))
    subprocess.run(command, check=True, timeout=600)


def test_the_index_alone(tmp_path):
    """A checkpoint of shards in the watched directory itself has the name of its index."""
    model, other = net(seed=1), net(seed=2)
    save_shards(model, tmp_path / "x")
    restored(tmp_path / "x" / "model.safetensors.index.json", other)
    assert same(model, other)


def test_the_package_is_not_needed(tmp_path, monkeypatch):
    """A worker's environment has torch, and maybe nothing else."""
    import sys

    saved = save_file(net(seed=1), tmp_path / "m.safetensors")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("safetensors", "transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    restored(saved, net())


def test_one_parameter_that_differs_under_two_names(tmp_path):
    """Refuse a model that did not tie them: the last one would win without a word."""
    import torch

    values = tied_net(seed=1).state_dict()
    values["head.weight"] = values["head.weight"] + 1
    torch.save(values, tmp_path / "m.pt")
    model = tied_net(seed=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(EvaluationError) as caught:
        restored(tmp_path / "m.pt", model)
    assert "embed.weight" in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_weight_that_is_not_tied_must_be_there(tmp_path):
    """Stored once, needed twice."""
    saved = save_model(tied_net(), tmp_path / "m.safetensors")
    model = tied_net()
    model.head.weight = type(model.head.weight)(model.head.weight.detach().clone())
    with pytest.raises(EvaluationError) as caught:
        restored(saved, model)
    assert caught.value.kind == "mismatch"
    assert "head.weight" in str(caught.value) or "embed.weight" in str(caught.value)


def test_a_folder_that_is_being_deleted(tmp_path):
    """Its weights are gone: the checkpoint vanished, the model is not wrong."""
    folder = save_shards(net(), tmp_path / "checkpoint-5")
    min(folder.glob("*.safetensors")).unlink()
    for _ in range(2):
        with pytest.raises(EvaluationError) as caught:
            restored(folder, net())
        assert caught.value.kind == "vanished"
        for path in folder.iterdir():
            path.unlink()


def test_tied_models_of_hugging_face(tmp_path):
    """A causal language model, as `save_pretrained` writes it."""
    import transformers

    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    model, other = transformers.GPT2LMHeadModel(config), transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "checkpoint-1")
    assert not same(model, other)
    restored(tmp_path / "checkpoint-1", other)
    assert same(model, other)


@pytest.mark.parametrize("where", ["ema", lambda content: content["ema"]])
def test_the_place_is_named_if_several_fit(tmp_path, where):
    """An exponential moving average beside the model."""
    import torch

    model, average = net(seed=1), net(seed=2)
    torch.save({"model": model.state_dict(), "ema": average.state_dict()}, tmp_path / "m.pt")
    with pytest.raises(EvaluationError) as caught:
        restored(tmp_path / "m.pt", net())
    assert "Task(checkpoint='model')" in str(caught.value)
    restored(tmp_path / "m.pt", other := net(), where)
    assert same(other, average)


def test_another_type_is_noted(tmp_path):
    """Weights in bfloat16 in a model of float32."""
    import torch

    saved = save_file(net(seed=1, dtype=torch.bfloat16), tmp_path / "m.safetensors")
    (note,) = restored(saved, net())
    assert "bfloat16" in note


def test_names_of_former_releases_of_transformers(tmp_path):
    """Only `from_pretrained` can reverse them; what it leaves to chance is refused."""
    from safetensors.torch import load_file, save_file

    from sidecar.evaluation.backends.torch.pretrained import is_of_transformers, load_by_transformers
    from sidecar.evaluation.backends.torch.restore import fits, restore
    from sidecar.evaluation.backends.torch.weight_files import Stored, load

    model, other, folder = vit(), vit(), tmp_path / "checkpoint-5"
    model.save_pretrained(folder)
    assert is_of_transformers(model)
    assert not is_of_transformers(net())
    assert not fits(other, load(str(folder))), "else this test shows nothing"
    restore(other, Stored(load_by_transformers(other, folder)), None)
    assert same(model, other)
    values = load_file(folder / "model.safetensors")
    del values["classifier.bias"]
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EvaluationError) as caught:
        load_by_transformers(vit(), folder)
    assert "missing keys classifier.bias" in str(caught.value)
