"""Find models that keep something from earlier weights or batches."""

import numpy as np
import pytest
from evaluation.backends.torch.models import (
    EXAMPLES,
    cached,
    evaluate,
    loss_of,
    net,
    one_by_one,
    saved,
    task,
    tensors,
)

from sidecar.evaluation.failures import EvaluationError

pytestmark = pytest.mark.torch


def test_a_cache_that_does_not_depend_on_weights(tmp_path):
    """Such as that of rotary positions."""
    paths = [tmp_path / "step-1.pt", tmp_path / "step-2.pt"]
    models = [saved(lambda: cached("positions"), path, seed) for seed, path in enumerate(paths)]
    given = task(build_model=lambda: cached("positions"))
    assert one_by_one(given, *paths) == pytest.approx([loss_of(model) for model in models], rel=1e-6)
    evaluate(given, paths[0])


def test_a_cache_of_earlier_weights(tmp_path):
    """A forward pass before the restore, or of an earlier checkpoint, has filled it: all numbers would be wrong."""
    saved(lambda: cached("weights"), tmp_path / "step-1.pt")
    with pytest.raises(EvaluationError, match="earlier weights") as caught:
        evaluate(task(build_model=lambda: cached("weights")), tmp_path / "step-1.pt", ranks=(1,))
    assert " cache" in str(caught.value)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_cache_of_earlier_batches(tmp_path, ranks):
    """The first worker's first batch is the one on which the model was tried, so another one must show the cache."""
    saved(lambda: cached("batches"), tmp_path / "step-1.pt")
    with pytest.raises(EvaluationError, match="earlier weights or batches") as caught:
        evaluate(task(build_model=lambda: cached("batches")), tmp_path / "step-1.pt", ranks=(ranks,))
    assert " cache" in str(caught.value)


def test_weights_that_are_merged_in_the_mode_of_evaluation(tmp_path):
    """As `loralib` does in `train(False)`, and undoes in `train()`."""
    import torch
    from torch import nn

    class Lora(nn.Linear):
        def __init__(self, *sizes):
            self.merged = False
            super().__init__(*sizes)
            self.a, self.b = nn.Parameter(torch.randn(2, sizes[0])), nn.Parameter(torch.randn(sizes[1], 2))

        def train(self, mode=True):
            super().train(mode)
            if self.merged == mode:
                self.weight.data += (-1 if mode else 1) * (self.b @ self.a)
                self.merged = not mode
            return self

        def forward(self, x):
            return super().forward(x) + (0 if self.merged else x @ self.a.T @ self.b.T)

    def build():
        return nn.Sequential(Lora(4, 8), nn.Tanh(), nn.Linear(8, 3))

    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        models.append(build())
        torch.save(models[-1].state_dict(), tmp_path / f"step-{seed}.pt")
    losses = one_by_one(task(build_model=build), tmp_path / "step-1.pt", tmp_path / "step-2.pt")
    assert losses == pytest.approx([loss_of(model) for model in models], rel=1e-5)


@pytest.mark.parametrize("kind", ["by size", "each 11th"])
def test_losses_that_keep_something_are_refused(tmp_path, kind):
    """A single worker has no other to differ from."""
    import torch

    kept, calls = {}, []

    def loss(predictions, y):
        calls.append(0)
        losses = torch.nn.functional.cross_entropy(predictions, y, reduction="none")
        return kept.setdefault(len(y), losses) if kind == "by size" else losses * (1 + (len(calls) % 11 == 0))

    saved(net, tmp_path / "step-1.pt")
    with pytest.raises(EvaluationError, match=r"loss="):
        evaluate(task(loss=loss), tmp_path / "step-1.pt", ranks=(1,))


def test_outputs_in_the_same_buffer_each_time(tmp_path):
    """Outputs of several batches are added at once: those of the first would have the values of the last."""
    import torch
    from torch import nn

    class Buffered(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.out = torch.zeros(8, 3)

        def forward(self, x):
            self.out[: len(x)] = self.net(x)
            return self.out[: len(x)]

    model = saved(Buffered, tmp_path / "step-1.pt")
    found = evaluate(task(build_model=Buffered), tmp_path / "step-1.pt")
    assert found.notes == ()
    x, y = tensors()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in zip(x.split(8), y.split(8), strict=True))
    assert found.values["accuracy"].value == right / EXAMPLES


def projecting(kind):
    """A model with a random projection that no checkpoint holds."""
    import torch
    from torch import nn

    class Projecting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()
            if kind == "buffer":
                self.register_buffer("drawn", torch.randn(4, 4), persistent=False)
            elif kind == "permutation":
                self.drawn = np.eye(4, dtype="float32")[np.random.permutation(4)]  # noqa: NPY002 - as users write it
            elif kind == "seeded":
                self.drawn = torch.randn(4, 4, generator=torch.Generator().manual_seed(7))
            else:
                drawn = torch.randn(4, 4)
                self.project = lambda x: x @ drawn

        def forward(self, x):
            return self.net(self.project(x) if hasattr(self, "project") else x @ torch.as_tensor(self.drawn))

    return Projecting


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["buffer", "permutation", "closure"])
def test_numbers_that_are_drawn_when_the_model_is_built(tmp_path, kind, ranks):
    """Those of training are lost, and each worker would draw the same other ones."""
    saved(projecting(kind), tmp_path / "step-1.pt", 5)
    with pytest.raises(EvaluationError, match="build_model draws") as caught:
        evaluate(task(build_model=projecting(kind)), tmp_path / "step-1.pt", ranks=(ranks,))
    assert (" drawn:" in str(caught.value)) == (kind != "closure")


def test_numbers_that_are_drawn_with_a_seed_or_restored(tmp_path):
    """They are those of training."""
    import torch

    model = saved(projecting("seeded"), tmp_path / "step-1.pt", 5)
    (loss,) = one_by_one(task(build_model=projecting("seeded")), tmp_path / "step-1.pt")
    assert loss == pytest.approx(loss_of(model), rel=1e-6)
    model = saved(projecting("buffer"), tmp_path / "step-1.pt", 5)

    def restore(fresh, path):
        fresh.load_state_dict(torch.load(path))
        fresh.drawn.copy_(model.drawn)

    (loss,) = one_by_one(task(build_model=projecting("buffer"), restore=restore), tmp_path / "step-1.pt")
    assert loss == pytest.approx(loss_of(model), rel=1e-6)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_generator_of_the_task_is_refused(checkpoint, kind):
    """It cannot be seeded from outside, so a result would depend on how the batches are divided."""
    import torch

    own = {"torch": torch.Generator().manual_seed(3), "numpy": np.random.default_rng(3)}[kind]

    def step(model, batch):
        x, y = batch
        noise = torch.rand(x.shape, generator=own) if kind == "torch" else torch.from_numpy(own.random(x.shape)).float()
        return y, model(x + noise)

    with pytest.raises(EvaluationError, match="cannot be seeded"):
        evaluate(task(step=step), checkpoint)


def test_a_generator_that_a_step_seeds_each_time(checkpoint):
    """The same noise for each batch of one size: repeatable, and a note says that the size matters."""
    import torch

    own = torch.Generator()

    def step(model, batch):
        x, y = batch
        return y, model(x + torch.rand(x.shape, generator=own.manual_seed(len(x))))

    (note,) = evaluate(task(step=step), checkpoint).notes
    assert "another batch size" in note


def test_random_values_that_a_restore_of_ones_own_leaves(tmp_path):
    """`strict=False` passes over other names, for each checkpoint; a part that no prediction needs can be named."""
    import torch

    saved(net, tmp_path / "step-1.pt", 5)
    saved(net, tmp_path / "step-2.pt", 6)
    right = loss_of(saved(net, tmp_path / "step-3.pt", 6))

    def task_of(rename, **changes):
        def restore(model, path):
            values = {rename(name): value for name, value in torch.load(path).items()}
            model.load_state_dict(values, strict=False)

        return task(restore=restore, **changes)

    for path in ("step-1.pt", "step-2.pt"):
        with pytest.raises(EvaluationError, match=r"leaves .*2\.weight.* build_model draws"):
            evaluate(task_of(lambda name: name.replace("2.", "head.")), tmp_path / path, ranks=(1,))
    evaluate(task(restore=lambda *_: None), tmp_path / "step-1.pt")  # nobody can have meant to restore anything
    (loss,) = one_by_one(task_of(str), tmp_path / "step-3.pt")
    assert loss == pytest.approx(right, rel=1e-6)
    found = evaluate(task_of(lambda name: name.removeprefix("0."), from_build_model=["0."]), tmp_path / "step-3.pt")
    (note,) = found.notes
    assert "random values of build_model" in note
    assert "0.weight" in note


@pytest.mark.parametrize("seeds", [True, False])
@pytest.mark.parametrize("way", ["part", "other names", "new model"])
def test_a_seed_of_build_model_does_not_hide_what_a_restore_leaves(tmp_path, way, seeds):
    """The weights of `build_model` are the same each time, and those of no checkpoint."""
    import torch

    def build():
        if seeds:
            torch.manual_seed(7)
        return net()

    def restore(model, path):
        if way == "new model":
            return torch.load(path, weights_only=False)
        values = torch.load(path, weights_only=False).state_dict()
        kept = (
            dict(list(values.items())[:2]) if way == "part" else {f"module.{name}": one for name, one in values.items()}
        )
        return model.load_state_dict(kept, strict=False)

    torch.save(net(), tmp_path / "step-1.pt")
    message = {
        "part": r"leaves .*build_model draws",
        "other names": r"writes nothing into the model.*restore=lambda model, path: model.load_state_dict\(torch.load",
        "new model": r"the Sequential that it returns is not used.*weights_only=False\)\.state_dict\(\)\)",
    }[way]
    with pytest.raises(EvaluationError, match=message):
        evaluate(task(build_model=build, restore=restore), tmp_path / "step-1.pt", ranks=(1,))


def test_a_restore_of_the_values_that_build_model_has(tmp_path):
    """The first checkpoint of a training that begins with given weights holds these."""
    import torch

    def build():
        torch.manual_seed(7)
        return net()

    right = loss_of(saved(build, tmp_path / "step-0.pt", 7))
    given = task(build_model=build, restore=lambda model, path: model.load_state_dict(torch.load(path)))
    (loss,) = one_by_one(given, tmp_path / "step-0.pt")
    assert loss == pytest.approx(right, rel=1e-6)
