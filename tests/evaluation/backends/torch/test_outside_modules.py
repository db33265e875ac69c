"""Learned values that a task uses next to its model, or keeps of it: they are not those of the checkpoint."""

import copy
import functools
import types

import pytest
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Mean

pytestmark = pytest.mark.torch

EXAMPLES = 41


def data():
    import torch
    from torch.utils.data import TensorDataset

    x = torch.randn(EXAMPLES, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x[:, :3].argmax(1))


def net(inputs=6, outputs=3):
    from torch import nn

    return nn.Linear(inputs, outputs)


def task(**changes):
    from torch import nn

    given = {"build_model": net, "eval_sets": {"test": data}, "loss": nn.CrossEntropyLoss(), "batch_size": 8}
    return Task(**given | changes)


def with_step(use):
    """A task whose step calls a function of (model, x) that uses another module."""
    return task(step=lambda model, batch: (batch[1], use(model, batch[0])))


class Holder:
    """A callable object, as steps with settings are written."""

    def __init__(self, embed):
        self.embed = embed

    def __call__(self, model, batch):
        """As a function of a step."""
        return batch[1], model(self.embed(batch[0]))


EMBED = None


def through_a_global(model, batch):
    return batch[1], model(EMBED(batch[0]))


@pytest.mark.parametrize("way", ["closure", "function", "object", "partial", "default", "global", "loss", "list"])
def test_parameters_outside_of_the_model_are_refused(monkeypatch, way):
    """No file is read for them, so they are as they were made: another number than that of training."""
    import torch

    embed = net(6, 6)
    monkeypatch.setitem(globals(), "EMBED", embed)

    def through(model, x):
        return model(embed(x))

    several = [embed]
    given = {
        "closure": with_step(lambda model, x: model(embed(x))),
        "function": with_step(through),
        "object": task(step=Holder(embed)),
        "partial": task(step=functools.partial(lambda one, model, batch: (batch[1], model(one(batch[0]))), embed)),
        "default": task(step=lambda model, batch, one=embed: (batch[1], model(one(batch[0])))),
        "global": task(step=through_a_global),
        "loss": task(loss=lambda p, y: embed(torch.cat([p, p], 1))[:, 0] + y),
        "list": with_step(lambda model, x: model(several[0](x))),
    }[way]
    with pytest.raises(EvaluationError, match="no checkpoint restores them") as caught:
        torch_evaluator(given)
    name = {"global": "EMBED", "partial": "Linear", "default": "one", "list": "several[0]"}.get(way, "embed")
    assert f"uses {name}, a Linear" in str(caught.value)
    embed.requires_grad_(False)  # what the message says of values that are right
    torch_evaluator(given)


def test_the_remedy_has_the_number_of_training(tmp_path):
    """A file with the parts `head` and `embed` is restored into the module that holds both."""
    import torch
    from torch import nn

    torch.manual_seed(3)
    embed, head = net(6, 6), net()
    torch.save({"head": head.state_dict(), "embed": embed.state_dict(), "step": 5}, tmp_path / "step-5.pt")
    given = task(
        build_model=lambda: nn.ModuleDict({"head": net(), "embed": net(6, 6)}),
        step=lambda model, batch: (batch[1], model["head"](model["embed"](batch[0]))),
    )
    x, y = data().tensors
    right = nn.functional.cross_entropy(head(embed(x)), y).item()
    for ranks in (1, 2):
        found = result_of_ranks(given, tmp_path / "step-5.pt", ranks)["test"]
        assert found.values["loss"].value == pytest.approx(right, rel=1e-6)
        assert not found.notes


def test_modules_without_values_of_their_own_are_left_alone():
    """The model itself as a global variable, activations, and parameters that are constants."""
    from torch import nn

    model, activation = net(), nn.ReLU()
    fixed = net(3, 3).requires_grad_(requires_grad=False)
    step = lambda _, batch: (batch[1], fixed(activation(model(batch[0]))))  # noqa: E731 - as users write it
    torch_evaluator(task(build_model=lambda: model, step=step))


def test_a_name_of_an_attribute_is_no_variable(monkeypatch):
    """`batch.EMBED` does not read the global variable EMBED."""
    monkeypatch.setitem(globals(), "EMBED", net())

    def step(model, batch):
        return batch[1], model(getattr(batch, "EMBED", batch[0]) if not hasattr(batch, "x") else batch.EMBED)

    torch_evaluator(task(step=step))


def test_a_module_that_a_step_only_names():
    """The first batch shows that its values are not used."""
    teacher, wants_teacher = net(), False

    def step(model, batch):
        predictions = model(batch[0])
        return batch[1], predictions + teacher(batch[0]) if wants_teacher else predictions

    torch_evaluator(task(step=step))


def test_parameters_of_another_file_are_refused():
    """`state.EMBED(x)`: no variable of the step leads to it, but torch's functions get its values."""
    state = types.ModuleType("state")
    state.EMBED = net(6, 6)
    with pytest.raises(EvaluationError, match=r"shapes \(6, 6\), \(6,\)"):
        torch_evaluator(with_step(lambda model, x: model(state.EMBED(x))))


def test_parameters_that_a_step_makes_of_those_of_the_model(tmp_path):
    """A learner that adapts itself to each example, as in meta-learning, is a new copy each time."""
    import torch

    def adapted(model, x):
        learner = copy.deepcopy(model)
        with torch.enable_grad():
            gradients = torch.autograd.grad(learner(x).square().mean(), list(learner.parameters()))
        for parameter, gradient in zip(learner.parameters(), gradients, strict=True):
            parameter.data -= 0.1 * gradient
        return learner(x)

    def predict(model, x):
        return torch.cat([adapted(model, each[None]) for each in x])

    torch.manual_seed(3)
    model, (x, y) = net(), data().tensors
    torch.save(model.state_dict(), tmp_path / "step-1.pt")
    right = torch.nn.functional.cross_entropy(predict(model, x), y).item()
    for ranks in (1, 3):
        found = result_of_ranks(with_step(predict), tmp_path / "step-1.pt", ranks)["test"]
        assert found.values["loss"].value == pytest.approx(right, rel=1e-6)


CLASSES = None


def once(model, batch):
    global CLASSES  # noqa: PLW0603 - as users write it
    if CLASSES is None:
        CLASSES = model.weight / model.weight.norm(dim=1, keepdim=True)
    return batch[1], batch[0] @ CLASSES.T


@pytest.mark.parametrize("way", ["global", "cache", "numpy", "object"])
def test_what_is_set_back_is_that_of_each_checkpoint(monkeypatch, tmp_path, way):
    """Embeddings of class names, or features of a bank, computed once: a living worker makes them anew."""
    import torch

    monkeypatch.setitem(globals(), "CLASSES", None)

    @functools.cache
    def directions(model):
        return model.weight / model.weight.norm(dim=1, keepdim=True)

    bank, holder = {}, types.SimpleNamespace(kept=None)

    def nearest(model, x):
        """Features of other examples, computed once, as for a vote of neighbours."""
        if "features" not in bank:
            bank["features"] = model(data().tensors[0]).cpu().numpy()
        return -torch.cdist(model(x), torch.from_numpy(bank["features"]))[:, :3]

    def by_object(model, x):
        holder.kept = directions.__wrapped__(model) if holder.kept is None else holder.kept
        return x @ holder.kept.T

    def alone(model, x):
        kept = directions.__wrapped__(model)
        return -torch.cdist(model(x), model(x))[:, :3] if way == "numpy" else x @ kept.T

    given = {
        "global": task(step=once),
        "cache": with_step(lambda model, x: x @ directions(model).T),
        "numpy": with_step(nearest),
        "object": with_step(by_object),
    }[way]
    x, y = data().tensors
    evaluators = [torch_evaluator(given, rank, 2) for rank in (0, 1)]
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = net()
        torch.save(model.state_dict(), path := tmp_path / f"step-{seed}.pt")
        states = []
        for evaluator in evaluators:  # ranks are processes, and would not share what they keep
            evaluator.read(lambda: None)
            evaluator.restore(str(path))()
            evaluator.digest()
            states.append(evaluator.evaluate(lambda: None))
        for name, state in states[1]["test"].items():
            states[0]["test"][name].merge(state)
        found = evaluators[0].compute(states[0])["test"]
        right = torch.nn.functional.cross_entropy(alone(model.double(), x.double()), y).item()
        assert found.values["loss"].value == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("way", ["loss", "first batch", "elsewhere"])
def test_what_cannot_be_set_back_is_refused(way):
    """Values of the first batch differ between workers; variables of a module without a file stay."""
    kept, state = [], types.ModuleType("state")

    def loss(predictions, y):
        kept.append(predictions.mean())
        return (predictions[:, 0] - kept[0] - y) ** 2

    def centred(model, x):
        kept.append(model(x).mean(0))
        return model(x) - kept[0]

    def elsewhere(model, x):
        state.classes = getattr(state, "classes", None)
        state.classes = model.weight * 1 if state.classes is None else state.classes
        return x @ state.classes.T

    given, message = {
        "loss": (task(loss=loss), r"Task\(loss=…\) uses kept\[0\] of shape \(\)"),
        "first batch": (with_step(centred), r"Task\(step=…\) uses .*kept\[0\] of shape \(3,\)"),
        "elsewhere": (with_step(elsewhere), r"uses .* of shape \(3, 6\)"),
    }[way]
    with pytest.raises(EvaluationError, match=message):
        torch_evaluator(given)


def test_what_a_hook_keeps_until_the_next_call(tmp_path):
    """Activations in a dict are written before they are read; constants, and what is only gathered, may be kept."""
    import torch

    activations, constants, gathered = {}, {}, []

    def step(model, batch):
        handle = model.register_forward_hook(lambda *given: activations.update(out=given[2]))
        model(batch[0])
        handle.remove()
        gathered.append(activations["out"].numpy())
        return batch[1], activations["out"] + constants.setdefault("shift", torch.arange(3.0))

    torch.manual_seed(3)
    model, (x, y) = net(), data().tensors
    torch.save(model.state_dict(), tmp_path / "step-1.pt")
    right = torch.nn.functional.cross_entropy(model(x) + torch.arange(3.0), y).item()
    found = result_of_ranks(task(step=step), tmp_path / "step-1.pt", 2)["test"]
    assert found.values["loss"].value == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("kind", ["torchmetrics", "own", "seeded", "one network"])
def test_a_metric_with_random_parameters_is_refused(kind):
    """A perceptual distance in a network that nothing was loaded into."""
    import torch

    torchmetrics = pytest.importorskip("torchmetrics")

    class Distance(torchmetrics.Metric):
        full_state_update = False

        def __init__(self, network):
            super().__init__()
            self.network = network
            self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, preds, target):
            with torch.no_grad():
                self.total += self.network(preds)[:, 0].sum() + target.sum()
            self.count += len(preds)

        def compute(self):
            return self.total / self.count

    shared = net(3, 2)

    def own():
        network = net(3, 2)
        return [Mean(lambda y, p: network(torch.as_tensor(p))[:, 0].detach().numpy() + y, name="own")]

    def seeded():
        torch.manual_seed(0)
        return [Distance(net(3, 2))]

    metrics = {
        "torchmetrics": lambda: [Distance(net(3, 2))],
        "own": own,
        "seeded": seeded,
        "one network": lambda: [Distance(shared)],
    }[kind]
    if kind in ("seeded", "one network"):
        torch_evaluator(task(metrics=metrics))
        return
    with pytest.raises(EvaluationError, match=r"random numbers, in .*network\.weight"):
        torch_evaluator(task(metrics=metrics))
