"""Files with several sets of weights, wrapped names, left-out parts, values of earlier classes: right, or the line."""

import collections
import copy
import functools
import re

import pytest
from evaluation.backends.torch.weights import net, restored, same
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def classifier():
    """A body and a head, as many scripts have them."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
            self.head = nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.body(x))

    torch.manual_seed(5)
    return Net()


def rows(n=103):
    import torch
    from torch.utils.data import TensorDataset

    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x[:, :3].argmax(1))


def trained(seed):
    """A classifier with other values."""
    import torch

    model = classifier()
    with torch.no_grad():
        for number, value in enumerate(model.parameters()):
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(seed * 10 + number)))
    return model


def right(model):
    """The loss of all rows in one process, in float64."""
    import torch

    x, y = rows().tensors
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(copy.deepcopy(model).double()(x.double()), y).item()


def task(**changes):
    from torch import nn

    given = {"build_model": classifier, "eval_sets": {"test": rows}, "loss": nn.CrossEntropyLoss(), "batch_size": 16}
    return Task(**given | changes)


def losses(path, **changes):
    """The loss by 1, 2 and 3 ranks, which is one number; and the notes."""
    found = [result_of_ranks(task(**changes), path, ranks)["test"] for ranks in (1, 2, 3)]
    assert len({each.values["loss"].hex for each in found}) == 1
    assert len({each.notes for each in found}) == 1
    return found[0].values["loss"].value, found[0].notes


def refused(path, **changes):
    """The message of a refusal."""
    evaluator = torch_evaluator(task(**changes))
    with pytest.raises(EvaluationError) as caught:
        evaluator.restore(str(path))()
    assert caught.value.kind == "mismatch"
    return str(caught.value)


def written_in(message):
    """The arguments of the last line of code that a message tells to write."""
    (code,) = re.findall(r"Task\(((?:checkpoint|from_build_model|ignore)=[^…()]*?)\)", message)[-1:]
    return eval(f"dict({code})")


def save(content, tmp_path, name="step-20.pt"):
    import torch

    torch.save(content, tmp_path / name)
    return tmp_path / name


def test_two_entries_of_one_file(tmp_path):
    """A training state as timm writes it: a namespace, a number of numpy, and two sets of weights."""
    import argparse

    import numpy as np

    model, average = trained(1), trained(2)
    content = {"epoch": 1, "state_dict": model.state_dict(), "args": argparse.Namespace(lr=0.1, model="net")}
    path = save({**content, "state_dict_ema": average.state_dict(), "metric": np.float64(71.5)}, tmp_path)
    message = refused(path)
    assert "Task(checkpoint='state_dict') or Task(checkpoint='state_dict_ema')" in message
    assert losses(path, **written_in(message))[0] == pytest.approx(right(average), rel=1e-6)


@pytest.mark.parametrize("kind", ["parts", "of several models", "lists", "modules", "wrapped"])
def test_parts_with_state_dicts_of_their_own(tmp_path, kind):
    """As tutorials save an encoder and a decoder; `checkpoint=` chooses where there are several models."""
    import torch
    from torch import nn

    def ensemble():
        class Ensemble(nn.Module):
            def __init__(self):
                super().__init__()
                self.models = nn.ModuleList(classifier() for _ in range(3))

            def forward(self, x):
                return sum(model(x) for model in self.models)

        return Ensemble()

    if kind == "lists":
        model = ensemble()
        for number, part in enumerate(model.models):
            part.load_state_dict(trained(number).state_dict())
        path = save({"models": [part.state_dict() for part in model.models], "step": 20}, tmp_path)
        assert losses(path, build_model=ensemble)[0] == pytest.approx(right(model), rel=1e-6)
        return
    model, other = trained(1), trained(2)
    parts = {"body": model.body.state_dict(), "head": model.head.state_dict()}
    further = {"optimizer": {}, "critic": nn.Linear(3, 1).state_dict(), "step": 20}
    if kind == "wrapped":
        parts = {name: {f"module.{at}": value for at, value in part.items()} for name, part in parts.items()}
    if kind == "modules":
        path = save({"body": model.body, "head": model.head} | further, tmp_path)
        with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.ReLU, set]):
            assert losses(path)[0] == pytest.approx(right(model), rel=1e-6)
        return
    if kind != "of several models":
        assert losses(save(parts | further, tmp_path))[0] == pytest.approx(right(model), rel=1e-6)
        return
    others = {"body": other.body.state_dict(), "head": other.head.state_dict()}
    path = save({"model": parts, "ema": others}, tmp_path)
    message = refused(path)
    assert "Task(checkpoint='model') or Task(checkpoint='ema')" in message
    assert losses(path, **written_in(message))[0] == pytest.approx(right(other), rel=1e-6)
    assert losses(path, checkpoint=lambda c: c["model"])[0] == pytest.approx(right(model), rel=1e-6)
    del others["head"]["bias"]
    message = refused(save({"ema": others, "step": 20}, tmp_path))
    assert "missing there: head.bias" in message
    assert losses(tmp_path / "step-20.pt", **written_in(message))[1]


def test_two_prefixes_in_one_mapping(tmp_path):
    """An averaged model next to the one that is trained, in one state dict."""
    import torch

    model, average = trained(1), trained(2)
    flat = {f"online_model.{name}": value for name, value in model.state_dict().items()}
    flat |= {f"ema_model.{name}": value for name, value in average.state_dict().items()}
    path = save({**flat, "initted": torch.tensor(True), "step": torch.tensor(20)}, tmp_path)
    message = refused(path)
    assert "'online_model' and 'ema_model'" in message
    assert written_in(message) == {"checkpoint": "ema_model"}
    loss, notes = losses(path, checkpoint="ema_model")
    assert loss == pytest.approx(right(average), rel=1e-6)
    assert notes == ()
    assert losses(path, checkpoint="online_model.")[0] == pytest.approx(right(model), rel=1e-6)
    assert "'online_model', 'ema_model'" in refused(path, checkpoint="emma")


def test_names_with_and_without_a_prefix(tmp_path):
    """A set without a prefix is chosen by ignoring the other one."""
    model, average = trained(1), trained(2)
    flat = {**model.state_dict(), **{f"ema.{name}": value for name, value in average.state_dict().items()}}
    path = save(flat, tmp_path)
    message = refused(path)
    assert "Task(checkpoint='ema')" in message
    assert written_in(message) == {"ignore": ["ema."]}
    loss, notes = losses(path, ignore=["ema."])
    assert loss == pytest.approx(right(model), rel=1e-6)
    assert "ema.body.0.weight" in notes[0]
    path = save({**model.state_dict(), "average": average.state_dict()}, tmp_path)
    assert losses(path, checkpoint="average")[0] == pytest.approx(right(average), rel=1e-6)
    assert losses(path, checkpoint="")[0] == pytest.approx(right(model), rel=1e-6)
    assert "Task(checkpoint='') or Task(checkpoint='average')" in refused(path)


def test_one_set_under_two_names(tmp_path):
    """There is nothing to choose."""
    values = trained(1).state_dict()
    assert losses(save({"model": values, "state_dict": values}, tmp_path))[0] == pytest.approx(right(trained(1)), 1e-6)


def test_a_history_and_the_step_after_the_weights(tmp_path):
    """They are no part of the model, and no note names them."""
    model = trained(1)
    history = [float(number) for number in range(4000)]
    path = save({"model": model.state_dict(), "lr_history": history, "global_step": 20}, tmp_path, "latest.pt")
    assert losses(path) == (pytest.approx(right(model), rel=1e-6), ())


@pytest.mark.parametrize("content", ["tuple", "list", "numbers", "namespace", "deep"])
def test_other_containers(tmp_path, content):
    """Two sets in them are found, and chosen by their places."""
    import argparse

    first, second = trained(1), trained(2)
    values = first.state_dict(), second.state_dict()
    given, place = {
        "tuple": ((3, *values), "2"),
        "list": ({"models": list(values)}, "models.1"),
        "numbers": (dict(enumerate(values)), "1"),
        "namespace": (argparse.Namespace(a=values[0], b=values[1]), "b"),
        "deep": (
            {"callbacks": {"EMA{decay=0.9}": {"ema": {"w": values[1]}}}, "m": values[0]},
            "callbacks.EMA{decay=0.9}.ema.w",
        ),
    }[content]
    path = save(given, tmp_path)
    assert f"Task(checkpoint={place!r})" in refused(path)
    restored(path, other := classifier(), place)
    assert same(other, second)


def lists_of(model):
    return [value.detach() for value in model.parameters()]


def without_dots(model):
    return {name.replace(".", ""): value for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("further", "named"),
    [
        (lambda model: {"ema": {"decay": 0.9, "shadow_params": lists_of(model)}}, "'ema.shadow_params'"),
        (lambda model: {"model_ema": without_dots(model)}, "'model_ema'"),
        (lambda model: {"ema": {n: v for n, v in model.state_dict().items() if "bias" not in n}}, "'ema'"),
        (
            lambda model: {"teacher": {f"net.{n}": v for n, v in model.named_parameters() if "0" not in n}},
            "'teacher.net'",
        ),
        (
            lambda model: {"deep": {"a": {"b": [{f"x.{n}": v for n, v in list(model.named_parameters())[1:]}]}}},
            "'deep.a.b.0.x'",
        ),
    ],
)
def test_values_that_look_like_the_models_are_noted(tmp_path, further, named):
    """The set that fits is used, and a note says that there is another one."""
    model, other = trained(1), trained(2)
    path = save({"model": model.state_dict(), **further(other)}, tmp_path)
    loss, (note,) = losses(path)
    assert loss == pytest.approx(right(model), rel=1e-6)
    assert named in note
    assert losses(path, checkpoint="model")[1] == ()


def test_states_of_optimizers_are_not_noted(tmp_path):
    """They have the sizes of the weights."""
    import torch

    model = trained(1)
    optimizer = torch.optim.Adam(model.parameters())
    right_loss = model(rows().tensors[0]).sum()
    right_loss.backward()
    optimizer.step()
    momentum = {f"state.{name}": value for name, value in model.state_dict().items()}
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "optim": {"exp_avg": momentum}}
    assert losses(save(saved, tmp_path))[1] == ()


def compiled(model):
    import torch

    model.body = torch.compile(model.body, backend="eager")
    return model.state_dict()


def averaged(model):
    from torch.optim.swa_utils import AveragedModel

    average = AveragedModel(model)
    average.update_parameters(model)
    return average.state_dict()


def checkpointed(model):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model.head = checkpoint_wrapper(model.head)
    return model.state_dict()


def named(prefix, place):
    """A state dict with a part of names that a wrapper adds at a place."""

    def rename(model):
        return {name.replace(place, f"{place}{prefix}."): value for name, value in model.state_dict().items()}

    return rename


WRAPPED = {
    "a compiled part": compiled,
    "an averaged model": averaged,
    "an averaged model of a compiled one": lambda model: {f"_orig_mod.{n}": v for n, v in averaged(model).items()},
    "an averaged model in a module": lambda model: {f"ema.{n}": v for n, v in averaged(model).items()},
    "activation checkpointing": named("_checkpoint_wrapped_module", "body."),
    "activation checkpointing of the head": checkpointed,
    "FSDP": named("_fsdp_wrapped_module", "head."),
    "a part in DataParallel": named("module", "body."),
    "all of them": lambda model: {
        f"net.module._orig_mod.{n}": v for n, v in named("_fsdp_wrapped_module.module", "head.")(model).items()
    },
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_names_of_wrappers_at_any_level(tmp_path, wrapper):
    """They fall away if the result fits exactly."""
    model = trained(1)
    path = save({"step": 20, "model": WRAPPED[wrapper](copy.deepcopy(model))}, tmp_path)
    loss, notes = losses(path)
    assert loss == pytest.approx(right(model), rel=1e-6)
    assert notes == ()


def test_wrappers_in_the_model(tmp_path):
    """The task may compile or wrap a part, whatever training did."""
    import torch

    model = trained(1)

    def build():
        built = classifier()
        built.body = torch.compile(built.body, backend="eager")
        built.head = torch.nn.DataParallel(built.head)
        return built

    for values in (model.state_dict(), named("_fsdp_wrapped_module", "body.")(model)):
        restored(save(values, tmp_path), built := build())
        assert torch.equal(built.body._orig_mod[0].weight, model.body[0].weight)
        assert torch.equal(built.head.module.bias, model.head.bias)


def test_names_that_would_be_one_without_wrappers(tmp_path):
    """Two sets again: none is chosen without a word."""
    model, other = trained(1), trained(2)
    flat = {**model.state_dict(), **{f"module.{name}": value for name, value in other.state_dict().items()}}
    message = refused(save(flat, tmp_path))
    assert "Task(checkpoint='module')" in message
    restored(save(flat, tmp_path), found := classifier(), "module")
    assert same(found, other)


def in_a_row(model):
    """The same layers in classes of torch alone, so that a file may hold the module."""
    import torch

    row = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    row.load_state_dict(dict(zip(row.state_dict(), model.state_dict().values(), strict=True)))
    return row


def test_a_whole_module(tmp_path):
    """In half precision, next to an entry without a value: the message has the code, and then it is read."""
    import torch

    model = in_a_row(trained(1))
    path = save({"epoch": 3, "model": copy.deepcopy(model).half(), "ema": None, "date": "today"}, tmp_path)
    build = {"build_model": lambda: in_a_row(classifier())}
    message = refused(path, **build)
    code = message.partition("task's file: ")[2]
    assert code.count("torch.nn.modules") > 5
    try:
        exec(code, {})
        loss, notes = losses(path, **build)
    finally:
        torch.serialization.clear_safe_globals()
    assert loss == pytest.approx(right(copy.deepcopy(model).half().float()), rel=1e-6)
    assert "float16 in model" in notes[0]


def test_a_part_that_training_left_out(tmp_path):
    """The message names the line, and the result the values that build_model gave."""
    model = classifier()
    head = trained(1).head
    path = save({"step": 20, "model": {f"head.{n}": v for n, v in head.state_dict().items()}}, tmp_path)
    message = refused(path)
    assert "missing there: body.0.bias, body.0.weight" in message
    assert written_in(message) == {"from_build_model": ["body."]}
    loss, (note,) = losses(path, from_build_model=["body."])
    model.head = head
    assert loss == pytest.approx(right(model), rel=1e-6)
    assert "body.0.bias, body.0.weight" in note


def test_values_of_build_model_come_back(tmp_path):
    """An earlier checkpoint held them: it is not what the next one is evaluated with."""
    import torch

    whole = save(trained(1).state_dict(), tmp_path, "step-1.pt")
    part = save(trained(2).head.state_dict(prefix="head."), tmp_path, "step-2.pt")
    evaluator = torch_evaluator(task(from_build_model=["body."]))
    for path in (whole, part):
        evaluator.restore(str(path))()
    assert torch.equal(evaluator.model.body[0].weight, classifier().body[0].weight)
    assert torch.equal(evaluator.model.head.weight, trained(2).head.weight)


def test_ranks_must_have_built_the_same_values(tmp_path):
    """The digest that ranks compare covers values of build_model."""
    import torch

    path = save(trained(1).head.state_dict(prefix="head."), tmp_path)

    def differs():
        model = classifier()
        with torch.no_grad():
            model.body[0].bias[0] += 1e-3
        return model

    digests = set()
    for build in (classifier, classifier, differs):
        evaluator = torch_evaluator(task(build_model=build, from_build_model=["body."]))
        evaluator.restore(str(path))()
        digests.add(evaluator.digest()())
    assert len(digests) == 2


def test_patterns_without_an_effect(tmp_path):
    """A name that the model lacks is a mistake; one that the checkpoint holds, or does not hold, is noted."""
    path = save(trained(1).state_dict(), tmp_path)
    with pytest.raises((EvaluationError, TaskError)) as caught:
        torch_evaluator(task(from_build_model=["bodie."]))
    assert "bodie." in str(caught.value)
    (note,) = losses(path, from_build_model=["body."])[1]
    assert "had no effect" in note
    (note,) = losses(path, ignore=["lora_"])[1]
    assert "no value that ignore" in note


def test_surplus_values(tmp_path):
    """They are refused until the task ignores them; the result names them."""
    import torch

    model = trained(1)
    more = {"body.0.lora_A": torch.ones(2), "body.0.lora_B": torch.ones(2), "aux.weight": torch.ones(3)}
    path = save({"model": {**model.state_dict(), **more}}, tmp_path)
    message = refused(path)
    assert "only there: aux.weight, body.0.lora_A" in message
    loss, (note,) = losses(path, **written_in(message))
    assert loss == pytest.approx(right(model), rel=1e-6)
    assert "aux.weight, body.0.lora_A" in note
    assert "lora_A" in refused(path, ignore=["aux."])


def test_values_of_other_names_are_no_surplus(tmp_path):
    """Renamed values are neither left out by training nor without effect."""
    values = {n.replace("head", "fc"): v for n, v in trained(1).state_dict().items()}
    message = refused(save(values, tmp_path))
    assert "missing there: head.bias, head.weight; only there: fc.bias, fc.weight" in message
    assert "rename" in message
    assert "ignore" not in message


def test_a_part_of_the_model_of_training(tmp_path):
    """The task may build it alone; a note names what was not used."""
    from torch import nn

    path = save(trained(1).state_dict(), tmp_path)
    (note,) = restored(path, head := nn.Linear(16, 3))
    assert "body.0.weight, body.0.bias" in note
    assert same(head, trained(1).head)


def test_a_set_of_other_shapes(tmp_path):
    """A larger teacher with the same names is no choice."""
    model = trained(1)
    teacher = {n: v.repeat(2, *[1] * (v.ndim - 1)) for n, v in trained(2).state_dict().items()}
    restored(save({"teacher": teacher, "model": model.state_dict()}, tmp_path), other := classifier())
    assert same(other, model)


def test_sets_in_what_a_function_returns(tmp_path):
    """The message says what the function must return. A key that looks like that of an optimizer is no state."""
    model, average = trained(1).state_dict(), trained(2).state_dict()
    path = save({"optimal_model": model, "model": average}, tmp_path)
    assert "Task(checkpoint='optimal_model') or Task(checkpoint='model')" in refused(path)
    both = {f"{prefix}{n}": v for prefix, values in (("a.", model), ("b.", average)) for n, v in values.items()}
    message = refused(save({"model": both}, tmp_path), checkpoint=lambda content: content["model"])
    assert "below 'a.' alone" in message


def test_no_advice_to_ignore_the_scales_of_quantized_weights(tmp_path):
    """Their weights alone would be a wrong number."""
    import torch

    values = trained(1).state_dict()
    path = save({**values, "head.weight_scale_inv": torch.ones(1)}, tmp_path)
    assert "ignore" not in refused(path)
    assert "quantized" in refused(path)
    of_modelopt = {"head.input_quantizer._amax": torch.tensor(2.0), "head.weight_quantizer._amax": torch.ones(3, 1)}
    message = refused(save({"model_state_dict": {**values, **of_modelopt}}, tmp_path))
    assert "ignore" not in message
    assert "quantized" in message
    message = refused(save({**values, "logit_scale": torch.ones(1)}, tmp_path))
    assert "ignore=['logit_scale']" in message
    assert "quantized" not in message


def old_batch_norm():
    """A state dict of torch before 0.4.1."""
    model = net(seed=1)
    model[1].num_batches_tracked += 7
    return net, {n: v for n, v in model.state_dict().items() if "num_batches" not in n}, model


def old_weight_norm():
    import torch
    from torch import nn

    def build():
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Linear(4, 3))

    old = nn.Sequential(nn.utils.weight_norm(nn.Linear(5, 4)), nn.Linear(4, 3))
    new = build()
    new.load_state_dict(old.state_dict())
    assert torch.equal(new[0].bias, old[0].bias)
    return build, {f"module.{n}": v for n, v in old.state_dict().items()}, new


def versioned():
    """A class that stored its weight transposed in version 1."""
    import torch
    from torch import nn

    class Layer(nn.Linear):
        _version = 2

        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *more):
            if local_metadata.get("version", 1) < 2:
                state_dict[f"{prefix}weight"] = state_dict[f"{prefix}weight"].T
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *more)

    def build():
        return nn.Sequential(Layer(4, 4), nn.ReLU())

    torch.manual_seed(3)
    new = build()
    return build, new, new


def renamed():
    """A pre-hook that renames values of an earlier release."""
    import torch
    from torch import nn

    def rename(_, state_dict, prefix, *__):
        if f"{prefix}gamma" in state_dict:
            state_dict[f"{prefix}scale"] = state_dict.pop(f"{prefix}gamma").reshape(3)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(3))
            self.register_load_state_dict_pre_hook(rename)

    def build():
        return nn.Sequential(Layer(), nn.Linear(3, 2))

    new = build()
    values = new.state_dict()
    values["0.gamma"] = values.pop("0.scale").reshape(1, 3)
    return build, values, new


def merged():
    """A layer whose adapter is merged into its weight in the mode of eval(), as loralib does."""
    import torch
    from torch import nn

    class Layer(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.lora = nn.Parameter(torch.randn(4, 4))
            self.is_merged = False

        def train(self, mode=True):
            super().train(mode)
            if mode == self.is_merged:
                self.weight.data += self.lora.data * (-1 if mode else 1)
                self.is_merged = not mode
            return self

    new = Layer()
    return Layer, new.state_dict(), new


@pytest.mark.parametrize("kind", [old_batch_norm, old_weight_norm, renamed, merged])
def test_what_modules_convert(tmp_path, kind):
    """As `load_state_dict` of a new model does it, and the same after another checkpoint."""
    import torch

    build, values, expected = kind()
    path = save(values, tmp_path)
    reference = build()
    reference.load_state_dict({n.removeprefix("module."): v for n, v in values.items()})
    model = build()
    with torch.no_grad():
        for value in model.state_dict().values():
            value.fill_(3)
    from sidecar.evaluation.backends.torch.restore import restore
    from sidecar.evaluation.backends.torch.weight_files import load
    from sidecar.evaluation.backends.torch.weight_sets import Kept

    kept = Kept.of(build(), [])
    for _ in range(2):
        restore(model, load(str(path)), None, kept=kept)
        assert same(model, reference)
    if kind is not old_batch_norm:
        assert same(model, expected)


def test_versions_of_classes_are_kept(tmp_path):
    """A value of the present version is not converted once more, below any prefix."""
    build, saved, expected = versioned()
    values = saved.state_dict()
    wrapped = collections.OrderedDict((f"module.0._orig_mod{n[1:]}", v) for n, v in values.items())
    versions = {"": {"version": 1}, "module": {"version": 1}, "module.0": {"version": 1}}
    wrapped._metadata = versions | {"module.0._orig_mod": {"version": 2}}
    for each in (values, wrapped):
        restored(save({"model": each}, tmp_path), model := build())
        assert same(model, expected)
    wrapped._metadata = {}
    restored(save(wrapped, tmp_path), model := build())
    assert (model[0].weight == expected[0].weight.T).all()


def test_a_module_that_accepts_everything(tmp_path):
    """Values that it leaves as they were are no values of the checkpoint."""
    import torch
    from torch import nn

    class Tolerant(nn.Linear):
        def _load_from_state_dict(self, state_dict, prefix, *more):
            for name in ("weight", "bias"):
                state_dict.setdefault(f"{prefix}{name}", getattr(self, name).detach().clone())
            super()._load_from_state_dict(state_dict, prefix, *more)

    class Deaf(nn.Linear):
        def _load_from_state_dict(self, *_):
            pass

    path = save({"0.weight": torch.ones(3, 3)}, tmp_path)
    with pytest.raises(EvaluationError) as caught:
        restored(path, nn.Sequential(Tolerant(3, 3)))
    assert "from_build_model=['0.bias']" in str(caught.value)
    path = save(nn.Sequential(nn.Linear(3, 3)).state_dict(), tmp_path)
    with pytest.raises(EvaluationError) as caught:
        restored(path, nn.Sequential(Deaf(3, 3)))
    assert "0.weight" in str(caught.value)


def test_scalars_and_extra_states(tmp_path):
    """One number for a scalar, as torch takes it, and what modules save in addition to tensors."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.extra = {"n": 1}

        def get_extra_state(self):
            return self.extra

        def set_extra_state(self, state):
            self.extra = state

    model = nn.Sequential(Layer())
    model[0].extra = {"n": 7}
    values = {f"net.module.{n}": v for n, v in model.state_dict().items()}
    values["net.module.0.scale"] = torch.tensor([5.0])
    restored(save({"state_dict": values}, tmp_path), other := nn.Sequential(Layer()))
    assert other[0].extra == {"n": 7}
    assert other[0].scale.item() == 5.0
    values["net.module.0.scale"] = torch.ones(2)
    with pytest.raises(EvaluationError, match="scale"):
        restored(save(values, tmp_path), other)
    del values["net.module.0._extra_state"]
    with pytest.raises(EvaluationError, match="_extra_state"):
        restored(save(values, tmp_path), other)


@pytest.mark.parametrize("kind", ["complex", "sparse", "quantized", "bytes", "numpy", "list", "tensor", "text"])
def test_values_of_other_kinds(tmp_path, kind):
    """One sentence with the remedy, and none of another library."""
    import torch

    values = trained(1).state_dict()
    weight = values["head.weight"]
    content = {
        "complex": {**values, "head.weight": weight.to(torch.complex64)},
        "sparse": {**values, "head.weight": weight.to_sparse()},
        "quantized": {**values, "head.weight": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)},
        "bytes": {**values, "head.weight": (weight * 100).to(torch.int8)},
        "numpy": {"params": {n: v.numpy() for n, v in values.items()}},
        "list": list(values.values()),
        "tensor": weight,
        "text": "weights",
    }[kind]
    path = save(content, tmp_path)
    message = refused(path)
    assert "weights_only" not in message
    assert "\n" not in message
    if kind == "numpy":
        code = message.partition("write Task(")[2].removesuffix(")")
        where = eval(f"dict({code})", {"torch": torch})["checkpoint"]
        restored(path, other := classifier(), where)
        assert same(other, trained(1))


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_sparse_buffers(tmp_path, layout):
    """As the adjacency of a graph; it is never made dense, and another one has another digest."""
    import torch

    def adjacency(shift):
        dense = torch.eye(8).roll(shift, 0)
        return {"coo": dense.to_sparse, "csr": dense.to_sparse_csr, "csc": dense.to_sparse_csc}[layout]()

    class Graph(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = classifier()
            self.register_buffer("adjacency", adjacency(0))

        def forward(self, x):
            return self.head((self.adjacency @ x.T).T)

    digests = set()
    for shift in (1, 2):
        model = Graph()
        model.head, model.adjacency = trained(shift), adjacency(shift)
        path = save(model.state_dict(), tmp_path)
        x, y = rows().tensors
        expected = torch.nn.functional.cross_entropy(model(x), y).item()
        assert losses(path, build_model=Graph) == (pytest.approx(expected, rel=1e-6), ())
        evaluator = torch_evaluator(task(build_model=Graph))
        evaluator.restore(str(path))()
        digests.add(evaluator.digest()())
    assert len(digests) == 2


def test_fractions_in_the_place_of_integers(tmp_path):
    """They would be cut off; whole numbers of another type are the same numbers."""
    import torch

    class Counted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("counts", torch.tensor([1, 2, 3]))

    restored(save({"counts": torch.tensor([4.0, 5.0, 6.0])}, tmp_path), other := Counted())
    assert other.counts.tolist() == [4, 5, 6]
    with pytest.raises(EvaluationError, match="fractions"):
        restored(save({"counts": torch.tensor([4.5, 5.0, 6.0])}, tmp_path), Counted())


def quantized(model):
    import torch

    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def spectral(model):
    from torch import nn

    model.body[0] = nn.utils.spectral_norm(model.body[0])
    return model


def parametrized(model):
    from torch import nn

    nn.utils.parametrizations.spectral_norm(model.body[0])
    nn.utils.parametrizations.weight_norm(model.head)
    return model


def pruned(model):
    from torch.nn.utils import prune

    prune.l1_unstructured(model.head, "weight", 0.3)
    return model


@pytest.mark.parametrize("change", [quantized, spectral, parametrized, pruned])
def test_layers_that_save_other_values_than_parameters(tmp_path, change):
    """Packed tuples, buffers of an iteration, masks; and the digest of the values tells checkpoints apart."""
    import torch

    x, y = rows().tensors
    digests = set()
    for seed in (1, 2):
        model = change(trained(seed))
        model(x)
        model.eval()
        path = save({"step": seed, "model": model.state_dict()}, tmp_path)
        loss, notes = losses(path, build_model=lambda: change(classifier()))
        with torch.no_grad():  # in the same batches, whose ranges a quantized layer uses
            predictions = torch.cat([model(part) for part in x.split(16)])
        assert loss == pytest.approx(torch.nn.functional.cross_entropy(predictions, y).item(), rel=1e-5)
        assert not any("build_model" in note or "not used" in note for note in notes)
        evaluator = torch_evaluator(task(build_model=lambda: change(classifier())))
        evaluator.restore(str(path))()
        digests.add(evaluator.digest()())
    assert len(digests) == 2


def test_a_state_dict_of_its_own_that_leaves_values_out(tmp_path):
    """A model may drop a frozen part when it is saved; that part is compared between ranks, and noted."""
    import torch

    class Lean(type(classifier())):
        def state_dict(self, *arguments, **options):
            whole = super().state_dict(*arguments, **options)
            return {name: value for name, value in whole.items() if not name.startswith("body.")}

    def build(seed=5):
        torch.manual_seed(seed)
        return Lean()

    path = save({"model": build().state_dict()}, tmp_path)
    message = refused(path, build_model=build)
    assert written_in(message) == {"from_build_model": ["body."]}
    given = written_in(message)
    assert "body.0.bias" in losses(path, build_model=build, **given)[1][0]
    digests = set()
    for seed in (5, 6):
        evaluator = torch_evaluator(task(build_model=lambda: build(seed), **given))  # noqa: B023 - called at once
        evaluator.restore(str(path))()
        digests.add(evaluator.digest()())
    assert len(digests) == 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", ["", "state_dict"])
def test_the_line_for_pruned_weights(tmp_path, place):
    """`torch.nn.utils.prune` saves the weights before the mask."""
    import torch
    from torch.nn.utils import prune

    model = trained(1)
    prune.l1_unstructured(model.head, "weight", 0.5)
    values = copy.deepcopy(model.state_dict())
    save({place: values} if place else values, tmp_path)
    message = refused(tmp_path / "step-20.pt")
    line = re.search(r"Task\(checkpoint=(.*)\)$", message)[1]
    prune.remove(model.head, "weight")
    assert losses(tmp_path / "step-20.pt", checkpoint=eval(line))[0] == pytest.approx(right(model), rel=1e-6)
    assert torch.count_nonzero(model.head.weight) == model.head.weight.numel() // 2


@pytest.mark.parametrize(
    "name", ["weight_norm", "spectral_norm", "parametrizations.weight_norm", "parametrizations.spectral_norm"]
)
def test_the_line_for_normalised_weights(tmp_path, name):
    """Weights that a layer computes from others, of which the plain layer has none."""
    import torch

    def normalised():
        model = trained(1)
        functools.reduce(getattr, name.split("."), torch.nn.utils)(model.head)
        return model.eval()

    model = normalised()
    save(model.state_dict(), tmp_path)
    call = re.search(r"let build_model call (.*)$", refused(tmp_path / "step-20.pt"))[1]

    def build():
        model = classifier()
        eval(call, {"torch": torch, "model": model})
        return model

    x, y = rows().tensors
    expected = torch.nn.functional.cross_entropy(model(x), y).item()
    assert losses(tmp_path / "step-20.pt", build_model=build)[0] == pytest.approx(expected, rel=1e-6)
