"""Folders of torch.distributed.checkpoint in a model of one process: the same bits, and no pickle that runs."""

import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from evaluation.backends.torch.weights import net, restored, same

from sidecar.evaluation.failures import EvaluationError

pytestmark = pytest.mark.torch

RECORDED = Path(__file__).parents[3] / "checkpoints" / "recorded" / "kinds"


def save(values, folder):
    """As training of one process saves."""
    import torch.distributed.checkpoint as dcp

    dcp.save(values, checkpoint_id=folder, no_dist=True)
    return folder


def training(model):
    """A model and its optimizer after a step, and numbers."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 5)).sum().backward()
    optimizer.step()
    return model.state_dict(), optimizer.state_dict()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["nested", "torchtitan", "alone", "ddp", "bare"])
def test_the_forms_that_training_saves(tmp_path, form):
    """The place of the model is found as in a file of torch.save; only its tensors are read."""
    model, other = net(seed=1), net(seed=2)
    values, optimizer = training(model)
    saved = {
        "nested": {"model": values, "optimizer": optimizer, "step": 5},
        "torchtitan": {**values, "optimizer": optimizer, "train_state": {"step": 5}, "lr_scheduler": {"last": 3}},
        "alone": {"model": values},
        "ddp": {"model": {f"module.{name}": value for name, value in values.items()}, "epoch": 3},
        "bare": values,
    }[form]
    restored(save(saved, tmp_path / "step-5"), other)
    assert same(model, other)


@pytest.mark.seconds
def test_a_model_in_parts_of_two_ranks(tmp_path):
    """FSDP saves each parameter in two parts: they are put together, bit by bit."""
    import subprocess

    import torch

    writer = Path(__file__).parents[3] / "checkpoints" / "sharded_writer.py"
    subprocess.run([sys.executable, "-W", "ignore", str(writer), str(tmp_path / "step-5")], check=True, timeout=600)
    assert {path.name for path in (tmp_path / "step-5").iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    expected = torch.load(tmp_path / "step-5.expected", weights_only=True)
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 4))
    restored(tmp_path / "step-5", model)
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore")
def test_the_place_is_named_if_several_fit(tmp_path):
    """An average beside the model, and a function that chooses."""
    model, average = net(seed=1), net(seed=2)
    folder = save({"model": model.state_dict(), "ema": {"shadow": average.state_dict()}}, tmp_path / "step-5")
    with pytest.raises(EvaluationError) as caught:
        restored(folder, net())
    assert "Task(checkpoint=" in str(caught.value)
    for where in ("ema.shadow", lambda content: content["ema"]["shadow"]):
        restored(folder, other := net(), where)
        assert same(other, average)
    with pytest.raises(EvaluationError) as caught:
        restored(folder, net(), lambda content: {name: value + 1 for name, value in content["model"].items()})
    assert "Task(restore=…)" in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_only_the_models_tensors_are_read(tmp_path, monkeypatch):
    """Counted where torch reads them: not the optimizer's, and no object that is a pickle."""
    import torch

    values, optimizer = training(net(seed=1))
    folder = save({"model": values, "optimizer": optimizer, "step": 5}, tmp_path / "step-5")
    loaded, real = [], torch.load

    def counted(*arguments, **options):
        assert options["weights_only"]
        loaded.append(real(*arguments, **options))
        return loaded[-1]

    monkeypatch.setattr(torch, "load", counted)
    restored(folder, net())
    assert len(loaded) == len(values)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda values: values.pop("0.bias"), "0.bias"),
        (lambda values: values.update({"9.weight": values["0.weight"]}), "9.weight"),
        (lambda values: values.update({"0.bias": values["0.bias"][:-1].clone()}), "0.bias is (3,)"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, change, named):
    """Before anything is read."""
    values = dict(net(seed=1).state_dict())
    change(values)
    with pytest.raises(EvaluationError) as caught:
        restored(save({"model": values}, tmp_path / "step-5"), net())
    assert caught.value.kind == "mismatch"
    assert named in str(caught.value)


class Planted:
    """Writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def rewritten(folder, change):
    """Change the metadata of a folder, as an attacker or a defect would."""
    path = folder / ".metadata"
    read = pickle.loads(path.read_bytes())
    change(read)
    path.write_bytes(pickle.dumps(read))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", ["metadata", "planner", "object", "tensor"])
def test_a_planted_pickle_never_runs(tmp_path, place):
    """In `.metadata`, in an object that is no tensor, in place of a tensor."""
    import torch

    proof = tmp_path / "proof"
    model = net(seed=1)
    folder = save({"model": model.state_dict(), "step": 5}, tmp_path / "step-5")
    if place == "metadata":
        (folder / ".metadata").write_bytes(pickle.dumps(Planted(proof)))
    elif place == "planner":
        rewritten(folder, lambda read: read.planner_data.update({"x": Planted(proof)}))
    else:
        torch.save(Planted(proof), tmp_path / "planted.pt")
        planted = (tmp_path / "planted.pt").read_bytes()

        def change(read):
            name = "step" if place == "object" else "model.0.weight"
            (index,) = [index for index in read.storage_data if index.fqn == name]
            path = folder / "__0_0.distcp"
            at = path.stat().st_size
            path.write_bytes(path.read_bytes() + planted)
            read.storage_data[index] = type(read.storage_data[index])("__0_0.distcp", at, len(planted))

        rewritten(folder, change)
    if place == "object":
        restored(folder, other := net())
        assert same(other, model)
    else:
        with pytest.raises(EvaluationError) as caught:
            restored(folder, net())
        assert "step-5" in str(caught.value)
        assert "posix.system" in str(caught.value)
    assert not proof.exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", ["../secret.distcp", "/etc/hostname", "__0_0.distcp/../../x", 5])
def test_data_files_lie_in_the_folder(tmp_path, path):
    """Refuse a data file outside, whatever the metadata says."""
    folder = save({"model": net(seed=1).state_dict()}, tmp_path / "step-5")

    def change(read):
        for index, info in read.storage_data.items():
            read.storage_data[index] = type(info)(path, info.offset, info.length)

    rewritten(folder, change)
    with pytest.raises(EvaluationError) as caught:
        restored(folder, net())
    assert "no data file" in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_parts_that_are_not_the_whole_tensor(tmp_path):
    """Memory that nobody filled would be a silent wrong number."""
    shutil.copytree(RECORDED / "dcp_sharded" / "m-5", tmp_path / "step-5")
    import torch

    rewritten(tmp_path / "step-5", lambda read: read.state_dict_metadata["0.weight"].chunks.pop())
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 4))
    with pytest.raises(EvaluationError) as caught:
        restored(tmp_path / "step-5", model)
    assert "0.weight" in str(caught.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("content", [b"", b"\x80\x04.", pickle.dumps({"a": 1}), b"\x80\x04\x95", b"garbage"])
def test_metadata_that_is_none(tmp_path, content):
    """One sentence that names the file."""
    folder = save({"model": net().state_dict()}, tmp_path / "step-5")
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(EvaluationError) as caught:
        restored(folder, net())
    assert ".metadata" in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_a_data_file_that_is_cut_off(tmp_path):
    """The message has the remedy."""
    folder = save({"model": net().state_dict()}, tmp_path / "step-5")
    data = folder / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-20])
    with pytest.raises(EvaluationError) as caught:
        restored(folder, net())
    assert "copy or save it again" in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_a_folder_that_is_being_deleted(tmp_path):
    """A data file is gone."""
    folder = save({"model": net().state_dict()}, tmp_path / "step-5")
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(EvaluationError) as caught:
        restored(folder, net())
    assert caught.value.kind == "vanished"


@pytest.mark.filterwarnings("ignore")
def test_another_version_of_the_class_that_is_stored(tmp_path):
    """A class that torch moved or added is refused by its name, not guessed."""
    folder = save({"model": net().state_dict()}, tmp_path / "step-5")
    rewritten(folder, lambda read: read.planner_data.update({"x": zipfile.ZipInfo("x")}))
    with pytest.raises(EvaluationError) as caught:
        restored(folder, net())
    assert "zipfile.ZipInfo" in str(caught.value)
