"""Models with several outputs, with texts as outputs, and with rows that are not examples, on PyTorch."""

from collections import namedtuple
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import AUC, MAE, Accuracy, Mean, Sums

pytestmark = pytest.mark.torch

RANKS = (1, 2, 3)


def saved(model, tmp_path):
    import torch

    path = tmp_path / "step-1.pt"
    torch.save({"step": 1, "model": model.state_dict()}, path)
    return path


def equal_on_all_ranks(task, checkpoint, eval_set="test"):
    """The numbers of 1, 2 and 3 ranks, which have the same bits."""
    results = [result_of_ranks(task, checkpoint, ranks)[eval_set] for ranks in RANKS]
    bits = [{name: (value.hex, value.lower) for name, value in result.values.items()} for result in results]
    assert bits[0] == bits[1] == bits[2]
    assert results[0].notes == results[1].notes == results[2].notes
    return results[0]


class TestLossByOutput:
    """`Task(loss={…})`, as with Keras."""

    @staticmethod
    def _data():
        import torch

        x = torch.randn(75, 6, generator=torch.Generator().manual_seed(1))
        return x, {"kind": x[:, :3].argmax(1), "size": x.sum(1)}

    @classmethod
    def _examples(cls):
        x, y = cls._data()
        return [(x[at], {name: part[at] for name, part in y.items()}) for at in range(len(x))]

    @staticmethod
    def _model(outputs=dict):
        import torch
        from torch import nn

        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.kind, self.size = nn.Linear(6, 3), nn.Linear(6, 1)

            def forward(self, x):
                made = {"kind": self.kind(x), "size": self.size(x).squeeze(1)}
                return {**made, "features": x} if outputs is dict else tuple(made.values())

        return Two()

    def _task(self, outputs=dict, **options):
        from torch.utils.data import DataLoader

        return Task(
            build_model=lambda: self._model(outputs),
            eval_sets={"test": lambda: DataLoader(self._examples(), batch_size=16)},
            **options,
        )

    def _expected(self):
        import torch
        from torch.nn import functional

        (x, y), model = self._data(), self._model()
        with torch.no_grad():
            made = model(x)
        return (
            functional.cross_entropy(made["kind"], y["kind"]).item(),
            functional.mse_loss(made["size"], y["size"]).item(),
        )

    def test_the_loss_is_the_sum_of_the_outputs_losses(self, tmp_path):
        """`loss`, `kind_loss` and `size_loss` are those of torch on all examples, beside metrics by output."""
        from torch import nn

        task = self._task(
            loss={"kind": nn.CrossEntropyLoss(), "size": nn.MSELoss()},
            metrics=lambda: {"kind": [Accuracy()], "size": [MAE()]},
        )
        values = equal_on_all_ranks(task, saved(self._model(), tmp_path)).values
        kind, size = self._expected()
        assert values["kind_loss"].value == pytest.approx(kind, rel=1e-6)
        assert values["size_loss"].value == pytest.approx(size, rel=1e-6)
        assert values["loss"].value == values["kind_loss"].value + values["size_loss"].value
        assert values["loss"].lower is None
        assert values["kind_loss"].lower < kind
        assert {"kind_accuracy", "size_mae"} < set(values)

    def test_the_loss_of_one_output_is_the_loss(self, tmp_path):
        """With one name there is one number, as with Keras, and it has an interval."""
        from torch import nn

        values = equal_on_all_ranks(self._task(loss={"size": nn.MSELoss()}), saved(self._model(), tmp_path)).values
        assert list(values) == ["loss"]
        assert values["loss"].value == pytest.approx(self._expected()[1], rel=1e-6)

    def test_a_function_may_take_all_outputs(self, tmp_path):
        """A function of one's own gets the dicts, and returns one value for each example."""
        from torch.nn import functional

        def both(predictions, y):
            kind = functional.cross_entropy(predictions["kind"], y["kind"], reduction="none")
            return kind + functional.mse_loss(predictions["size"], y["size"], reduction="none")

        values = equal_on_all_ranks(self._task(loss=both), saved(self._model(), tmp_path)).values
        assert values["loss"].value == pytest.approx(sum(self._expected()), rel=1e-6)

    def test_outputs_of_a_tuple_are_named_by_their_number(self, tmp_path):
        """Labels and predictions that are tuples have the numbers 0 and 1."""
        from torch import nn

        def step(model, batch):
            return tuple(batch[1].values()), model(batch[0])

        for loss in ({0: nn.CrossEntropyLoss(), 1: nn.MSELoss()}, [nn.CrossEntropyLoss(), nn.MSELoss()]):
            task = self._task(tuple, loss=loss, step=step)
            values = equal_on_all_ranks(task, saved(self._model(), tmp_path)).values
            assert values["0_loss"].value == pytest.approx(self._expected()[0], rel=1e-6)
            assert set(values) == {"loss", "0_loss", "1_loss"}

    def test_ignored_positions_of_one_output_count_in_the_others(self, tmp_path):
        """`ignore_index` of one loss takes examples out of the metrics of its own output only."""
        from torch import nn

        def step(model, batch):
            kind = batch[1]["kind"].clone()
            kind[::2] = -100
            return {"kind": kind, "size": batch[1]["size"]}, model(batch[0])

        task = self._task(
            loss={"kind": nn.CrossEntropyLoss()},
            metrics=lambda: {"kind": [Sums(lambda _y, _p, w: {"n": np.sum(w)}, lambda t: t["n"])], "size": [MAE()]},
            step=step,
        )
        values = equal_on_all_ranks(task, saved(self._model(), tmp_path)).values
        assert values["kind_sums"].value == sum(len(range(1, min(16, 75 - start), 2)) for start in range(0, 75, 16))
        assert values["size_mae"].lower is not None

    @pytest.mark.parametrize("empty", [{}, [], (), {"kind": None}, [None]])
    def test_no_loss_at_all_is_refused(self, empty):
        """The sum of no losses would be 0, the best value."""
        with pytest.raises(EvaluationError, match="no loss"):
            result_of_ranks(self._task(loss=empty), "nowhere", 1)

    def test_mistakes_name_the_outputs(self, tmp_path):
        """A single criterion, and a name that is no output, are refused with the names of the outputs."""
        from torch import nn

        checkpoint = saved(self._model(), tmp_path)
        with pytest.raises(EvaluationError, match=r"loss={'kind': …, 'size': …}"):
            result_of_ranks(self._task(loss=nn.CrossEntropyLoss()), checkpoint, 1)
        with pytest.raises(EvaluationError, match=r"'colour'.*'kind', 'size'"):
            result_of_ranks(self._task(loss={"colour": nn.MSELoss()}), checkpoint, 1)
        with pytest.raises(EvaluationError, match="'kind'"):
            result_of_ranks(self._task(loss=lambda predictions, y: (predictions - y) ** 2), checkpoint, 1)


class TestTexts:
    """Labels and predictions that are lists of texts, which a metric's function takes as lists."""

    WORDS = ("a", "bb", "ccc", "dd", "e", "ff", "g")

    def _task(self, metrics, **options):
        import torch
        from torch import nn
        from torch.utils.data import DataLoader

        ids = torch.randint(0, 7, (37, 4), generator=torch.Generator().manual_seed(2))
        examples = [(row, " ".join(self.WORDS[(int(k) + (int(k) == 6)) % 7] for k in row)) for row in ids]

        def collate(items):
            return [row for row, _ in items], [text for _, text in items]

        def step(_model, batch):
            return batch[1], [" ".join(self.WORDS[int(k)] for k in row) for row in batch[0]]

        return Task(
            build_model=lambda: nn.Linear(1, 1),
            eval_sets={"test": lambda: DataLoader(examples, batch_size=8, collate_fn=collate)},
            metrics=lambda: metrics,
            **{"step": step, **options},
        )

    def test_mean_and_sums_get_the_lists(self, tmp_path):
        """An exact match is the share of equal texts; both functions get lists for each batch, also for the last."""
        from torch import nn

        kinds = set()

        def equal(y, predictions):
            kinds.update((type(y), type(predictions), type(y[0])))
            return [a == b for a, b in zip(y, predictions, strict=True)]

        metrics = [
            Mean(equal, name="exact_match", goal="max"),
            Sums(lambda y, p: {"hits": sum(equal(y, p)), "n": len(y)}, lambda t: t["hits"] / t["n"], name="share"),
        ]
        values = equal_on_all_ranks(self._task(metrics), saved(nn.Linear(1, 1), tmp_path)).values
        hits = sum("g" not in text.split() for text in self._texts())
        assert values["exact_match"].value == values["share"].value == hits / 37
        assert values["exact_match"].lower is not None
        assert kinds == {list, str}

    def _texts(self):
        import torch

        ids = torch.randint(0, 7, (37, 4), generator=torch.Generator().manual_seed(2))
        return [" ".join(self.WORDS[int(k)] for k in row) for row in ids]

    def test_other_metrics_say_that_they_need_numbers(self, tmp_path):
        """A metric of numbers refuses texts by their type."""
        from torch import nn

        with pytest.raises(TaskError, match=r"'mae'.*object"):
            result_of_ranks(self._task([MAE()]), saved(nn.Linear(1, 1), tmp_path), 1)

    def test_random_texts_are_refused(self, tmp_path):
        """Texts that differ the second time are no result of the weights."""
        from itertools import count

        from torch import nn

        numbers = count()

        def step(_model, batch):
            return batch[1], [str(next(numbers)) for _ in batch[1]]

        task = self._task([Mean(lambda _, p: [len(text) for text in p])], step=step)
        with pytest.raises(EvaluationError, match="twice"):
            result_of_ranks(task, saved(nn.Linear(1, 1), tmp_path), 1)

    def test_lists_of_numbers_are_arrays(self, tmp_path):
        """Labels that a step returns as a list of numbers are labels as any others."""
        import torch
        from torch import nn

        def step(_model, batch):
            return [len(text) % 2 for text in batch[1]], torch.full((len(batch[1]),), 0.7)

        values = equal_on_all_ranks(
            self._task([Accuracy("binary")], step=step), saved(nn.Linear(1, 1), tmp_path)
        ).values
        assert values["accuracy"].value == sum(len(text) % 2 for text in self._truths()) / 37

    def _truths(self):
        import torch

        ids = torch.randint(0, 7, (37, 4), generator=torch.Generator().manual_seed(2))
        return [" ".join(self.WORDS[(int(k) + (int(k) == 6)) % 7] for k in row) for row in ids]


class TestRows:
    """Rows of labels and predictions that are pixels or nodes instead of examples."""

    @staticmethod
    def _task(step, examples=29, **options):
        import torch
        from torch import nn
        from torch.utils.data import DataLoader

        def image(at):
            generator = torch.Generator().manual_seed(at)
            height, width = 4 + at % 4, 5 + at % 3
            y = torch.randint(0, 4, (height, width), generator=generator)
            y[torch.rand(height, width, generator=generator) < 0.1] = 255
            return torch.rand(3, height, width, generator=generator), y

        def collate(items):
            return [x for x, _ in items], [y for _, y in items]

        return Task(
            build_model=lambda: nn.Conv2d(3, 4, 3, padding=1),
            eval_sets={
                "test": lambda: DataLoader([image(at) for at in range(examples)], batch_size=8, collate_fn=collate)
            },
            step=step,
            **options,
        )

    @staticmethod
    def _pixels(model, batch):
        import torch

        images, masks = batch
        rows = [model(x[None])[0].flatten(1).T for x in images]
        return torch.cat([y.flatten() for y in masks]), torch.cat(rows)

    @staticmethod
    def _model():
        import torch
        from torch import nn

        torch.manual_seed(3)
        return nn.Conv2d(3, 4, 3, padding=1)

    def test_each_pixel_counts(self, tmp_path):
        """The loss is that of all pixels; a note has both numbers, and there is no interval."""
        import torch
        from torch import nn

        loss = nn.CrossEntropyLoss(ignore_index=255)
        task = self._task(self._pixels, loss=loss, metrics=lambda: [Accuracy(), Mean(lambda y, _: y == 1)])
        result = equal_on_all_ranks(task, saved(self._model(), tmp_path))
        every = self._task(self._pixels, loss=loss).eval_sets["test"]().dataset
        with torch.no_grad():
            y, predictions = self._pixels(self._model(), ([x for x, _ in every], [y for _, y in every]))
        assert result.values["loss"].value == pytest.approx(loss(predictions, y).item(), rel=1e-6)
        assert all(value.lower is None for value in result.values.values())
        assert any(f"{len(y)} rows for 29 examples" in note for note in result.notes)

    def test_rows_need_as_many_labels(self, tmp_path):
        """Rows that are neither those of the examples nor those of the labels are refused with both numbers."""
        from torch import nn

        def step(model, batch):
            y, predictions = self._pixels(model, batch)
            return y[:-1], predictions

        with pytest.raises(EvaluationError, match="8 examples"):
            result_of_ranks(
                self._task(step, loss=nn.CrossEntropyLoss(ignore_index=255)), saved(self._model(), tmp_path), 1
            )

    def test_an_exact_auc_needs_examples(self, tmp_path):
        """The places of an exact AUC are those of examples, so rows of another kind are refused."""

        def step(model, batch):
            y, predictions = self._pixels(model, batch)
            return (y == 1).long(), predictions[:, 1]

        with pytest.raises(TaskError, match="BinnedAUC"):
            result_of_ranks(self._task(step, metrics=lambda: [AUC()]), saved(self._model(), tmp_path), 1)

    def test_rows_of_one_output_have_no_interval(self, tmp_path):
        """An output with a row for each pixel has no interval; another output of the same model has one."""
        import torch

        def step(model, batch):
            y, predictions = self._pixels(model, batch)
            images = torch.stack([model(x[None]).mean() for x in batch[0]])
            off = images + 1 + 0.01 * (1000 * images).sin()  # differences that are not equal but for rounding
            return {"pixel": (y == 1).long(), "image": images}, {"pixel": predictions[:, 1], "image": off}

        task = self._task(step, metrics=lambda: {"pixel": [Mean()], "image": [MAE()]})
        values = equal_on_all_ranks(task, saved(self._model(), tmp_path)).values
        assert values["pixel_mean"].lower is None
        assert values["image_mae"].lower is not None
        assert values["image_mae"].value == pytest.approx(1, abs=0.01)


class TestForms:
    """Any output of a model gives a number, or one sentence that says what to write."""

    @staticmethod
    def _made(form, scores):
        import torch

        @dataclass
        class Output:
            scores: Any
            hidden: Any = None

        class Plain:
            def __init__(self):
                self.scores = scores

        class Logits:
            def __init__(self):
                self.logits = scores

        forms = {
            "logits": Logits,
            "float16": scores.half,
            "bfloat16": scores.bfloat16,
            "float64": scores.double,
            "not contiguous": lambda: scores.T.contiguous().T,
            "expanded": lambda: scores[..., None].expand(*scores.shape, 1)[..., 0],
            "sparse": scores.to_sparse,
            "needs gradients": lambda: scores.clone().requires_grad_(),
            "numpy": scores.numpy,
            "list of rows": lambda: list(scores),
            "complex": lambda: scores.to(torch.complex64),
            "bool": lambda: scores > 0,
            "integers": (scores * 100).long,
            "number": scores.mean,
            "one": lambda: 0.5,
            "none": lambda: None,
            "meta": lambda: scores.to("meta"),
            "text": lambda: "text",
            "tuple": lambda: (scores, scores),
            "list": lambda: [scores, scores],
            "dict": lambda: {"scores": scores},
            "empty": lambda: (),
            "data class": lambda: Output(scores),
            "object": Plain,
            "named tuple": lambda: namedtuple("Made", "scores hidden")(scores, scores),  # noqa: PYI024
            "too few": lambda: scores[:-1],
            "too flat": lambda: scores[:, 0],
            "turned": lambda: scores.T,
        }
        return forms[form]()

    def _task(self, form, loss, metrics, step=None):
        import torch
        from torch import nn
        from torch.utils.data import TensorDataset

        made = self._made

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(4, 3)

            def forward(self, x):
                return made(form, self.out(x))

        x = torch.randn(33, 4, generator=torch.Generator().manual_seed(1))
        y = x[:, :3].argmax(1)
        return Task(
            Net,
            {"test": lambda: TensorDataset(x, y)},
            batch_size=8,
            restore=lambda *_: None,
            step=step,
            loss=nn.CrossEntropyLoss() if loss else None,
            metrics=(lambda: [Accuracy()]) if metrics else None,
        )

    RIGHT = ("logits", "float16", "bfloat16", "float64", "not contiguous", "expanded", "sparse", "needs gradients")
    OTHERS = (
        *("complex", "number", "one", "none", "meta", "text", "tuple", "list", "dict", "empty", "data class", "object"),
        *("named tuple", "too few", "too flat", "turned"),
    )

    @pytest.mark.parametrize("measured", ["loss", "metrics"])
    @pytest.mark.parametrize("form", RIGHT)
    def test_forms_of_one_tensor(self, form, measured):
        """A tensor of any type and layout gives the number of a plain one."""
        given = [self._task(each, measured == "loss", measured == "metrics") for each in ("logits", form)]
        plain, other = (result_of_ranks(one, "nowhere", 2)["test"].values for one in given)
        name = "loss" if measured == "loss" else "accuracy"
        assert other[name].value == pytest.approx(plain[name].value, rel=1e-2)

    @pytest.mark.parametrize("measured", ["loss", "metrics"])
    @pytest.mark.parametrize("form", OTHERS)
    def test_other_forms_are_refused_in_a_sentence(self, form, measured):
        """The message names the form, or the step that chooses an output."""
        with pytest.raises((EvaluationError, TaskError)) as caught:
            result_of_ranks(self._task(form, measured == "loss", measured == "metrics"), "nowhere", 1)
        assert len(str(caught.value).splitlines()) == 1
        if form in ("tuple", "list", "dict", "data class", "object", "named tuple"):
            key = {"tuple": 0, "list": 0, "named tuple": 0}.get(form, "scores")
            assert f"step=lambda model, batch: (batch[1], model(batch[0])[{key!r}])" in str(caught.value)

    @pytest.mark.parametrize("form", ["data class", "object", "named tuple", "dict"])
    def test_outputs_have_names(self, form):
        """Metrics and losses by name find the outputs of data classes, objects and named tuples."""
        from torch import nn

        task = self._task(
            form, loss=False, metrics=False, step=lambda model, batch: ({"scores": batch[1]}, model(batch[0]))
        )
        task = replace(task, loss={"scores": nn.CrossEntropyLoss()}, metrics=lambda: {"scores": [Accuracy()]})
        plain = result_of_ranks(self._task("logits", loss=True, metrics=True), "nowhere", 1)["test"].values
        values = result_of_ranks(task, "nowhere", 2)["test"].values
        assert values["loss"].value == plain["loss"].value
        assert values["scores_accuracy"].value == plain["accuracy"].value


def test_names_of_ones_own_are_no_outputs():
    """A dict is by output: the message for a model with one output has the form to write."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    data = TensorDataset(torch.ones(8, 2), torch.zeros(8, dtype=torch.long))
    given = {"build_model": lambda: nn.Linear(2, 3), "eval_sets": {"test": lambda: data}, "batch_size": 4}
    for measured in ({"loss": {"entropy": nn.CrossEntropyLoss()}}, {"metrics": lambda: {"top": [Accuracy()]}}):
        with pytest.raises(EvaluationError) as caught:
            torch_evaluator(Task(**given, **measured))
        assert "metrics=lambda: [metric] and loss=criterion" in str(caught.value)
