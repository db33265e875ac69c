"""Eval sets that an interrupted attempt finished are not evaluated again: groups of any size find the same bits."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from evaluation.fake_framework import Meeting, at_once

from sidecar import Task, results
from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.rank_evaluation import RankEvaluation
from sidecar.metrics import AUC, Accuracy, Mean
from sidecar.protocol.messages import Evaluate, Join, SetFinished
from sidecar.protocol.records import FINISHED_SETS, Checkpoint, Member

X = np.random.default_rng(3).normal(size=(206, 5)).astype(np.float32)
Y = (X[:, 0] > 0.1).astype(np.int64)
FIRST = X[:103]  # of the set that is evaluated first


class Interrupted(Meeting):
    """Lose the connection when the states are to be summed, after all sets are evaluated."""

    def rank(self, rank):
        """Return what that rank holds of it."""
        made = super().rank(rank)

        def lose(*_):
            raise EvaluationError("member_lost", "the other ranks are gone")

        made.reduce = lose
        return made


def source(part, form):
    x, y = X[part], Y[part]
    if form == "python":
        return lambda: (x, y)

    def dataset():
        import torch

        return torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))

    return dataset


def task(form, seen, **changes):
    """A task with two sets, of which `seen` notes the rows of the first that are evaluated."""
    note = seen.extend  # a list that the task's code held would be set back

    def scores(x, weights):
        note(row for row in np.asarray(x)[:, 0] if row in FIRST[:, 0])
        return x @ weights

    given = {
        "eval_sets": {name: source(part, form) for name, part in (("a/b", slice(103)), ("c", slice(103, 206)))},
        "metrics": lambda: [Accuracy(), Mean(lambda _, each: each.max(axis=1)), AUC(positive=1)],
        "slices": {"sign": lambda x, _: np.where(np.asarray(x)[:, 1] > 0, "plus", "minus")},
        "batch_size": 8,
    }
    if form == "python":
        given |= {"load": np.load, "predict": lambda model, x: scores(x, model)}
    else:

        def step(model, batch):
            x, y = batch
            return y, scores(x, model.weight.T)

        def build():
            from torch import nn

            return nn.Linear(5, 2, bias=False)

        given |= {"build_model": build, "step": step}
    return Task(**given | changes)


def save(form, path, seed=0):
    weights = np.random.default_rng(seed).normal(size=(5, 2)).astype(np.float32)
    if form == "python":
        np.save(path / "m.npy", weights)
        return path / "m.npy"
    import torch

    torch.save({"weight": torch.tensor(weights.T.copy())}, path / "m.pt")
    return path / "m.pt"


def attempt(form, made, path, root, ranks, meet=Meeting, plan=1, reported=None, seconds=2, keep_batches_seconds=30.0):
    """Return what each rank's evaluation came to: its result, or an error. `reported` gets its reports of sets."""
    members = tuple(Member(rank, f"node-{rank}", f"w.{rank}", "") for rank in range(ranks))
    meeting, ends = meet(ranks), [None] * ranks
    evaluators = [evaluator_of(form, made, rank, ranks) for rank in range(ranks)]

    def one(rank):
        command = Evaluate(
            plan=plan,
            checkpoint=Checkpoint(name=path.name, digest="digest", step=1, format="any"),
            path=str(path),
            save_to=str(root / "evaluations" / "m" / f"plan-{plan}" / f"worker-{rank}-of-{ranks}"),
            save_root=str(root),
            save_weights="none",
            progress_seconds=0.0,
            finished_sets=str(root / "evaluations" / "m" / FINISHED_SETS),
            keep_batches_seconds=keep_batches_seconds,
        )
        try:
            ends[rank] = RankEvaluation(
                command=command,
                join=Join(group="g", members=members, rank=rank, task="t", framework=form, search_path="/", threads=1),
                collective=meeting.rank(rank),
                evaluator=evaluators[rank],
                task_digest="t",
                profile={},
                enter=lambda _: None,
                report=lambda report: reported.append(report) if isinstance(report, SetFinished) else None,
                reports_sets=reported is not None,
                in_parallel=ThreadPoolExecutor(1),
                now=partial(next, count(0, seconds)),  # so that each set takes so long
            ).run()
        except EvaluationError as error:
            ends[rank] = error

    at_once(one, ranks, 60)
    return ends


def evaluator_of(form, made, rank, ranks):
    if form == "python":
        return PythonEvaluator.build(made, Shard(rank, ranks), cache_bytes=1 << 20)
    import torch

    from sidecar.evaluation.backends.torch.evaluator import TorchEvaluator

    return TorchEvaluator.build(made, Shard(rank, ranks), cache_bytes=1 << 20, device=torch.device("cpu"))


def found(ends):
    """All that a result says, apart from the group and the times."""
    (same,) = {repr((end.result.metrics, end.result.examples, end.result.slices, end.result.notes)) for end in ends}
    return same


FORMS = ["python", pytest.param("torch", marks=pytest.mark.torch)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 2), (1, 3), (2, 1)])
@pytest.mark.drawn(3)
def test_a_group_of_any_size_goes_on(tmp_path, form, before, after):
    """The bits are those of an evaluation without an interruption. Ranks try out a first batch, and no other one."""
    seen, path = [], save(form, tmp_path)
    undisturbed = found(attempt(form, task(form, seen), path, tmp_path / "alone", 1))
    ends = attempt(form, task(form, seen), path, tmp_path, before, meet=Interrupted, keep_batches_seconds=1e9)
    assert [end.kind for end in ends] == ["member_lost"] * before
    kept = tmp_path / "evaluations" / "m" / FINISHED_SETS
    assert {each.name for each in kept.iterdir()} == {"a%2Fb"}, "the last set is saved by the evaluation itself"
    assert set(seen) == set(FIRST[:, 0])
    seen.clear()
    ends = attempt(form, task(form, seen), path, tmp_path, after, plan=2)
    assert found(ends) == undisturbed
    assert set(seen) <= set(FIRST[:8, 0])
    assert not kept.exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 2), (1, 3)])
@pytest.mark.drawn(2)
def test_rows_of_a_finished_set_are_taken_over(tmp_path, form, before, after):
    """All rows of both sets are there once, in the order of the data, as without an interruption."""
    seen, path = [], save(form, tmp_path)
    attempt(form, task(form, seen, predictions=True), path, tmp_path / "alone", 1)
    attempt(form, task(form, seen, predictions=True), path, tmp_path, before, meet=Interrupted)
    seen.clear()
    assert found(attempt(form, task(form, seen, predictions=True), path, tmp_path, after, plan=2))
    assert set(seen) <= set(FIRST[:8, 0])
    alone, resumed = (
        results.read(root / "evaluations" / "m" / plan).predictions
        for root, plan in ((tmp_path / "alone", "plan-1"), (tmp_path, "plan-2"))
    )
    assert alone.keys() == resumed.keys() == {"a/b", "c"}
    for eval_set, columns in alone.items():
        assert list(columns) == list(resumed[eval_set])
        assert all(column.tobytes() == resumed[eval_set][name].tobytes() for name, column in columns.items())


@pytest.mark.parametrize("change", ["weights", "data", "torn", "missing", "torn rows", "missing rows"])
@pytest.mark.drawn(2)
def test_anything_else_is_evaluated_again(tmp_path, change):
    """Other weights or data, a file that is not whole, a rank that did not finish."""
    form, seen = "python", []
    path = save(form, tmp_path)
    given = {"predictions": True} if change.endswith("rows") else {}
    attempt(form, task(form, seen, **given), path, tmp_path, 2, meet=Interrupted)
    kept = sorted((tmp_path / "evaluations" / "m").glob(f"{FINISHED_SETS}/*/worker-*/states.json"))
    assert len(kept) == 2
    columns = sorted(kept[1].parent.glob("predictions/*/*.npy"))
    assert len(columns) == (3 if given else 0)
    if change == "weights":
        path = save(form, tmp_path, seed=1)
    elif change == "data":
        given = {"eval_sets": {"a/b": source(slice(1, 104), form), "c": source(slice(103, 206), form)}}
    elif change == "torn":
        kept[1].write_bytes(kept[1].read_bytes()[:-1])
    elif change == "missing":
        shutil.rmtree(kept[1].parent)
    elif change == "torn rows":
        columns[1].write_bytes(columns[1].read_bytes()[:-1])
    elif change == "missing rows":
        columns[2].unlink()
    seen.clear()
    ends = attempt(form, task(form, seen, **given), path, tmp_path, 2, plan=2)
    assert len(set(seen)) >= len(FIRST) - 1, "the first set was evaluated"
    assert found(ends) == found(attempt(form, task(form, [], **given), path, tmp_path / "alone", 1))


def test_a_set_that_took_no_time_is_not_kept(tmp_path):
    """Its file would take longer."""
    from sidecar.evaluation.finished_sets import FinishedSets

    sets = FinishedSets(folder=tmp_path / "f", root=tmp_path, shard=Shard(0, 1), in_parallel=None, now=lambda: 1.0)
    sets.begin((), {}, str)
    sets.keep("test", {}, None)
    assert (sets.exist(), sets.find("test", None), list(tmp_path.iterdir())) == (False, 0, [])


def test_states_of_a_set_are_readable(tmp_path):
    """They have the form of what workers save, and the key of all that they depend on."""
    path = save("python", tmp_path)
    attempt("python", task("python", []), path, tmp_path, 2, meet=Interrupted)
    (one, other) = (tmp_path / "evaluations" / "m" / FINISHED_SETS / "a%2Fb").iterdir()
    records = [json.loads(Path(each / "states.json").read_text()) for each in (one, other)]
    assert records[0]["key"] == records[1]["key"]
    assert [list(record["states"]) for record in records] == [["a/b"], ["a/b"]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.drawn(2)
def test_a_set_is_reported_before_the_others_are_evaluated(tmp_path, form, ranks):
    """The numbers have the bits of the whole result, after an interruption too; the last set is never reported."""
    path, made = save(form, tmp_path), task(form, [])
    for plan, meet in ((1, Interrupted), (2, Meeting)):
        reported = []
        ends = attempt(form, made, path, tmp_path, ranks, meet=meet, plan=plan, reported=reported)
        assert reported, "the rank that is the last to finish a set finds the states of all"
        for report in reported:
            assert (report.plan, report.finished.eval_set, report.finished.examples) == (plan, "a/b", 103)
    whole = ends[0].result.metrics["a/b"]
    assert {name: whole[name] for name in report.finished.metrics} == report.finished.metrics
    assert set(report.finished.metrics) >= {"accuracy", "roc_auc"}


def test_a_set_without_all_its_states_is_not_reported(tmp_path):
    """Numbers of half the examples are wrong: states of a set that took no time are not on disk before the end."""
    reported = []
    made = task("python", [])
    assert found(attempt("python", made, save("python", tmp_path), tmp_path, 2, reported=reported, seconds=0))
    assert reported == []
