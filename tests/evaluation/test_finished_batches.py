"""Batches that an interrupted attempt finished are not run again: groups of any size find the same bits."""

import json
from dataclasses import replace
from functools import partial
from hashlib import sha256

import numpy as np
import pytest
from evaluation.test_finished_sets import FIRST, Interrupted, Meeting, attempt, found, save, source, task

from sidecar import EvalSet, results
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.finished_batches import NOTE
from sidecar.evaluation.metrics.metric import MetricResult, value
from sidecar.evaluation.states import GatheredBatches, PerExampleValues, state_of
from sidecar.metrics import AUC, Accuracy, InTurn, Mean
from sidecar.protocol.example_inputs import INPUTS
from sidecar.protocol.records import FINISHED_SETS

pytestmark = pytest.mark.torch

BATCH = 8
BATCHES = -(-len(FIRST) // BATCH)
ALL = 0.0  # seconds of a clock that stands still: all batches are written


class Answers:
    """Keep a number and a text of each example, as answers of language models are kept."""

    name = "answers"

    def states(self, info):
        """Return new states of the two kinds."""
        return {"values": PerExampleValues(info.examples), "texts": GatheredBatches(info.shard)}

    def add(self, states, batch):
        """Add a batch."""
        state_of(states, "values", PerExampleValues).put(batch.first, batch.predictions[:, 0])
        text = json.dumps(batch.predictions.tolist()).encode()
        state_of(states, "texts", GatheredBatches).put(batch.first, np.frombuffer(text, np.uint8))

    def compute(self, states):
        """Return a number in which each bit of the states counts."""
        texts = b"".join(map(bytes, state_of(states, "texts", GatheredBatches).contents()))
        digest = sha256(state_of(states, "values", PerExampleValues).values().tobytes() + texts).digest()
        return MetricResult({"digest": value(float(int.from_bytes(digest[:6])), "none")})


def made_of(seen, *, draws=False, **changes):
    """The task, whose model puts the rows that it gets into `seen`."""
    given = {"eval_sets": {"test": source(slice(len(FIRST)), "torch")}, "metrics": lambda: [Answers()], "slices": {}}
    made = task("torch", seen, **given | changes)
    return replace(made, step=drawing(made.step)) if draws else made


def tried(path, root, ranks, end=None, *, plan=1, **changes):
    """Return the ends of an attempt that fails at a batch, if `end` is given, and the batches that the model saw."""
    seen = []

    class Seen(list):
        def extend(self, rows):
            rows = list(rows)
            numbers = {int(np.flatnonzero(FIRST[:, 0] == row)[0]) // BATCH for row in rows}
            seen.extend(numbers)
            if end is not None and max(numbers, default=0) >= end:
                raise EvaluationError("member_lost", "this process is gone")

    meet = Meeting if end is None else Interrupted
    ends = attempt(
        "torch",
        made_of(Seen(), **changes),
        path,
        root,
        ranks,
        meet=meet,
        plan=plan,
        seconds=0,
        keep_batches_seconds=ALL,
    )
    return ends, set(seen)


def kept_in(root):
    return sorted((root / "evaluations" / "m" / FINISHED_SETS).glob("test/batches-*/states.json"))


@pytest.fixture
def path(tmp_path):
    return save("torch", tmp_path)


@pytest.fixture
def undisturbed(path, tmp_path):
    ends, seen = tried(path, tmp_path / "alone", 1)
    assert seen == set(range(BATCHES))
    return found(ends)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2)])
def test_a_group_of_any_size_goes_on(tmp_path, path, undisturbed, before, after):
    """The bits are those of an evaluation without an interruption. The first batch is run again, and no other one."""
    tried(path, tmp_path, before, 7)
    assert [each.parent.name for each in kept_in(tmp_path)] == [f"batches-{rank}-of-{before}" for rank in range(before)]
    ends, seen = tried(path, tmp_path, after, plan=2)
    assert found(ends) == undisturbed
    assert seen == {0, *range(7, BATCHES)}
    assert not (tmp_path / "evaluations" / "m" / FINISHED_SETS).exists()


def test_several_interruptions(tmp_path, path, undisturbed):
    """Each attempt goes on from all before it, also if one of its ranks has not run any batch yet."""
    tried(path, tmp_path, 2, 4)
    _, seen = tried(path, tmp_path, 3, 7, plan=2)
    assert seen.isdisjoint(range(1, 4))
    _, seen = tried(path, tmp_path, 2, 10, plan=3)
    assert seen.isdisjoint(range(1, 7))
    ends, seen = tried(path, tmp_path, 1, plan=4)
    assert seen.isdisjoint(range(1, 10))
    assert found(ends) == undisturbed


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("differs", [False, True])
def test_a_set_that_went_on_is_finished_before_a_further_interruption(tmp_path, path, ranks, differs):
    """Its states are those of a set that nobody interrupted, and are used as such; none of another first batch are."""
    sets = {"test": source(slice(len(FIRST)), "torch"), "more": source(slice(len(FIRST), len(FIRST) + 40), "torch")}
    whole, _ = tried(path, tmp_path / "whole", 1, eval_sets=sets)
    tried(path, tmp_path, ranks, 7, eval_sets=sets)
    if differs:
        first = kept_in(tmp_path)[0]
        first.write_text(json.dumps(json.loads(first.read_text()) | {"first": "0" * 64}))
    # The connection is lost when the states are to be summed.
    first = attempt(
        "torch", made_of([], eval_sets=sets), path, tmp_path, ranks, meet=Interrupted, plan=2, keep_batches_seconds=ALL
    )
    assert {type(end) for end in first} == {EvaluationError}
    ends, seen = tried(path, tmp_path, ranks, plan=3, eval_sets=sets)
    assert (seen == set(range(BATCHES))) == differs
    for end in ends:
        object.__setattr__(end.result, "notes", tuple(each for each in end.result.notes if each != NOTE))
    assert found(ends) == found(whole)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_first_batch_with_other_values(tmp_path, path, undisturbed, ranks):
    """All ranks evaluate everything again, and a note says so."""
    tried(path, tmp_path, 2, 7)
    first = kept_in(tmp_path)[0]
    record = json.loads(first.read_text())
    first.write_text(json.dumps(record | {"first": "0" * 64}))
    ends, seen = tried(path, tmp_path, ranks, plan=2)
    assert seen == set(range(BATCHES))
    assert {end.result.notes[-1] for end in ends} == {NOTE}
    for end in ends:
        object.__setattr__(end.result, "notes", end.result.notes[:-1])
    assert found(ends) == undisturbed


def link(worker):
    worker.symlink_to(worker.rename(worker.with_name("elsewhere")))


def changed(worker, change):
    record = json.loads((worker / "states.json").read_text())
    change(record)
    (worker / "states.json").write_text(json.dumps(record))


DAMAGES = {
    "torn": lambda worker: (worker / "states.json").write_bytes((worker / "states.json").read_bytes()[:-1]),
    "a pickle": lambda worker: (worker / "states.json").write_bytes(b"cos\nabort\n(tR."),
    "a link": link,
    "a batch below 0": partial(changed, change=lambda record: record["batches"].append(-1)),
    "a batch too many": partial(changed, change=lambda record: record["batches"].append(BATCHES)),
    "no list": partial(changed, change=lambda record: record.update(batches="0")),
    "true": partial(changed, change=lambda record: record["batches"].append(True)),
    "no first": partial(changed, change=lambda record: record.pop("first")),
    "other key": partial(changed, change=lambda record: record.update(key="0")),
    "other weights": partial(changed, change=lambda record: record.update(variables="0")),
    "no states": partial(changed, change=lambda record: record["states"].clear()),
    "a state less": partial(changed, change=lambda record: record["states"]["test"].pop("answers/values")),
    "another kind": partial(
        changed,
        change=lambda record: record["states"]["test"].update(
            {"answers/values": record["states"]["test"]["answers/texts"]}
        ),
    ),
    "fewer places": partial(
        changed,
        change=lambda record: record["states"]["test"]["answers/values"].update(examples=1, places=[], bits=[]),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.drawn(8)
def test_files_that_do_not_fit(tmp_path, path, undisturbed, damage, ranks):
    """Batches of the rank that left them, or all, are run again, and nothing in the files is executed."""
    tried(path, tmp_path, 2, 7)
    DAMAGES[damage](kept_in(tmp_path)[1].parent)
    ends, seen = tried(path, tmp_path, ranks, plan=2)
    assert seen >= {1, 3, 5}
    for end in ends:
        object.__setattr__(end.result, "notes", tuple(note for note in end.result.notes if note != NOTE))
    assert found(ends) == undisturbed


def drawing(step):
    """Let predictions depend on random numbers of torch, as dropout that is left on does."""

    def drawn(model, batch):
        import torch

        y, scores = step(model, batch)
        return y, scores * (torch.rand(scores.shape) < 0.9)

    return drawn


def left_out():
    """A loader whose `collate_fn` leaves out the last examples of a batch."""
    import torch

    data = list(zip(*map(torch.tensor, source(slice(len(FIRST)), "python")()), strict=True))
    return torch.utils.data.DataLoader(data, BATCH, collate_fn=lambda rows: torch.utils.data.default_collate(rows[:5]))


def loss():
    import torch

    return torch.nn.CrossEntropyLoss()


def of_torchmetrics():
    import torchmetrics

    return [torchmetrics.AUROC("multiclass", num_classes=2), torchmetrics.Accuracy("multiclass", num_classes=2)]


SLICES = {"slices": {"sign": lambda x, _: np.where(np.asarray(x)[:, 1] > 0, "plus", "minus")}}
ADDED = {
    "rows": lambda: {"predictions": True},
    "inputs": lambda: {"predictions": True, "show": lambda x, y: f"{x} {y}"},
    "slices": lambda: (
        SLICES | {"metrics": lambda: [Accuracy(), Mean(lambda _, each: each.max(axis=1)), AUC(positive=1)]}
    ),
    "slices of a loss": lambda: SLICES | {"metrics": None, "loss": loss()},
    "groups": lambda: {
        "eval_sets": {"test": EvalSet(source(slice(len(FIRST)), "torch"), groups=np.arange(len(FIRST)) // 3)},
        "metrics": lambda: [Accuracy()],
        "loss": loss(),
    },
    "draws": lambda: {"draws": True},
    "torchmetrics": lambda: SLICES | {"metrics": of_torchmetrics, "intervals": True},
    "examples left out": lambda: {"eval_sets": {"test": left_out}, "metrics": lambda: [Accuracy()]},
}


ALONE = ("draws", "examples left out")  # ranks are threads here, and share the generator that they or a loader use
GROUPS = [(added, *sizes) for added in ADDED for sizes in ([(1, 1)] if added in ALONE else [(1, 2), (2, 3), (3, 1)])]


@pytest.mark.parametrize(("added", "before", "after"), GROUPS)
@pytest.mark.drawn(8)
def test_whatever_a_batch_adds_goes_on(tmp_path, path, added, before, after):
    """Rows, slices and random numbers: all that a result says, and each saved bit, are those without interruptions."""
    changes = ADDED[added]()
    alone, _ = tried(path, tmp_path / "alone", 1, **changes)
    tried(path, tmp_path, before, 5, **changes)
    tried(path, tmp_path, after, 9, plan=2, **changes)
    ends, seen = tried(path, tmp_path, before, plan=3, **changes)
    assert found(ends) == found(alone)
    assert seen == {0, *range(9, BATCHES)}
    one, other = (
        results.read(folder / "evaluations" / "m" / plan)
        for folder, plan in ((tmp_path / "alone", "plan-1"), (tmp_path, "plan-3"))
    )
    assert one.predictions.keys() == other.predictions.keys() == ({"test"} if "predictions" in changes else set())
    for name, column in one.predictions.get("test", {}).items():
        assert column.tobytes() == other.predictions["test"][name].tobytes()
    lines = [sorted(line for worker in each.workers for line in shown_in(worker)) for each in (one, other)]
    assert lines[0] == lines[1]
    assert bool(lines[0]) == ("show" in changes)


def shown_in(worker):
    file = worker / "predictions" / "test" / INPUTS
    return file.read_text().splitlines() if file.exists() else []


def test_rows_that_are_missing(tmp_path, path):
    """Columns that are gone or torn: the batches whose rows they had are run again."""
    changes = {"predictions": True}
    alone, _ = tried(path, tmp_path / "alone", 1, **changes)
    tried(path, tmp_path, 2, 7, **changes)
    column = next(kept_in(tmp_path)[1].parent.glob("predictions/test/*.npy"))
    column.write_bytes(column.read_bytes()[:-1])
    ends, seen = tried(path, tmp_path, 2, plan=2, **changes)
    assert seen == set(range(BATCHES))
    assert found(ends) == found(alone)
    assert len(results.read(tmp_path / "evaluations" / "m" / "plan-2").predictions["test"]["place"]) == len(FIRST)


def test_metrics_in_turn_are_not_kept(tmp_path, path):
    """Their objects hold what no state holds."""
    changes = {"metrics": lambda: [InTurn(lambda y, predictions: float((y == predictions.argmax(1)).mean()), name="a")]}
    tried(path, tmp_path, 2, 7, **changes)
    assert kept_in(tmp_path) == []
    ends, seen = tried(path, tmp_path, 2, plan=2, **changes)
    assert seen == set(range(BATCHES))
    assert found(ends)
