"""One evaluation on several ranks, with a fake framework: what is compared, saved, added up, and told."""

import errno
import json
import math
from pathlib import Path

import numpy as np
import pytest
from evaluation.fake_framework import (
    PARTS,
    STREAM,
    FakeEvaluator,
    evaluation_of,
    join_of,
    plan_folder,
    ranks,
    run,
)

from sidecar import results
from sidecar.evaluation import reduction
from sidecar.evaluation.failures import as_failed
from sidecar.evaluation.npy_table import NpyTable
from sidecar.evaluation.states import ExactSum
from sidecar.protocol import states
from sidecar.protocol.messages import Done, Progress
from sidecar.protocol.records import EvalData


def test_every_rank_holds_the_whole_result(tmp_path):
    """Phases in their order, progress of one's own, and one result for all."""
    found = run(tmp_path, ranks())
    results = [end.result for end, _, _ in found]
    assert results[0] == results[1] == results[2]
    assert results[0].examples == {"test": 5}
    assert results[0].metrics["test"]["sum"].value == 0.6
    assert results[0].notes == ("a sum",)
    assert results[0].workers == 3
    assert results[0].data == {"test": EvalData("abc", 3, "batches")}
    for rank, (end, phases, reports) in enumerate(found):
        assert (end.plan, end.rank, end.traces, end.builds) == (7, rank, 1, 1)
        assert phases == ["read", "restore", "hello", "evaluate", "save", "reduce", "conclude"]
        assert reports == [Progress(7, 1, None), Progress(7, 2, None), Progress(7, 3, None), Progress(7, 1, 1)]


def test_to_add_up_large_states_may_take_its_time(tmp_path, monkeypatch):
    """It has another name, since daemons give up a group that is in `reduce` for seconds."""
    monkeypatch.setattr(states, "_SMALL_STATE_BYTES", 8)
    for _, phases, _ in run(tmp_path, ranks()):
        assert phases == ["read", "restore", "hello", "evaluate", "save", "sum", "conclude"]


def test_the_plan_says_which_sets_take_part(tmp_path):
    """Its number of evaluations reaches whoever chooses them."""
    evaluators = ranks()
    assert all(isinstance(end, Done) for end, _, _ in run(tmp_path, evaluators, evaluated=[3, 3, 3]))
    assert [each.evaluated for each in evaluators] == [3, 3, 3]
    assert [each.most for each in evaluators] == [None, None, None]


@pytest.mark.parametrize(("attempt", "order"), [(1, ["restore", "read"]), (2, ["read", "restore"])])
def test_a_second_attempt_reads_the_checkpoint_when_the_data_are_read(tmp_path, attempt, order):
    """The first one does both at once; so a crash tells what it comes from, should it happen again."""
    began = []

    class Noting(FakeEvaluator):
        """Notes what is begun first."""

        def read(self, tick, evaluated, most=None):
            """Note that reading the data begins."""
            began.append("read")
            return super().read(tick, evaluated, most)

        def restore(self, path):
            """Note that restoring the checkpoint begins."""
            began.append("restore")
            return super().restore(path)

    ((end, _, _),) = run(tmp_path, [Noting((STREAM,), [each for part in PARTS for each in part])], attempt=[attempt])
    assert (isinstance(end, Done), began) == (True, order), end


def test_an_evaluation_that_begins_again(tmp_path):
    """Everything is done once more, on all ranks, and the saves are those of the last time."""
    evaluators = ranks()
    for evaluator in evaluators:
        evaluator.again = 1
    found = run(tmp_path, evaluators)
    assert [evaluator.rounds for evaluator in evaluators] == [2, 2, 2]
    assert found[0][0].result.metrics == run(tmp_path / "once", ranks())[0][0].result.metrics
    for rank in range(3):
        assert (tmp_path / "evaluations" / "c" / "plan-7" / f"worker-{rank}-of-3" / "states.json").exists()


def test_saves_are_complete_before_the_sum(tmp_path):
    """Each rank's folder holds its weights and its own states; together they are the result."""
    found = run(tmp_path, ranks(), save_weights=["all", "all", "none"])
    total = ExactSum((), "float64")
    for rank in range(3):
        folder = tmp_path / "evaluations" / "c" / "plan-7" / f"worker-{rank}-of-3"
        assert (folder / "weights").exists() == (rank < 2)
        saved = json.loads((folder / "states.json").read_text())
        assert (saved["schema"], saved["variables"]) == (1, "values")
        total.merge(ExactSum.from_json(saved["states"]["test"]["sum"]))
    assert float(total.round()) == found[0][0].result.metrics["test"]["sum"].value


@pytest.mark.parametrize(("weights_bytes", "copies"), [(10**9, 3), (10**9 + 1, 0)])
def test_large_weights_are_copied_only_if_the_user_asks_for_it(tmp_path, weights_bytes, copies):
    """By default they are not; the states have their digest, and the report their size and the memory."""
    evaluators = ranks()
    for evaluator in evaluators:
        evaluator.weights_bytes = weights_bytes
    found = run(tmp_path, evaluators, save_weights=["auto"] * 3)
    assert len(list(plan_folder(tmp_path).glob("*/weights"))) == copies
    assert {json.loads(path.read_text())["variables"] for path in plan_folder(tmp_path).glob("*/*.json")} == {"values"}
    done = found[0][0]
    assert (done.weights_bytes, done.gpu_bytes) == (weights_bytes, 0)
    assert 10**7 < done.memory_bytes < 10**11


def test_one_rank_may_save_for_all(tmp_path):
    """All restored the same; states are everybody's own."""
    run(tmp_path, ranks(), save_weights=["first"] * 3)
    names = {path.name: sorted(each.name for each in path.iterdir()) for path in plan_folder(tmp_path).iterdir()}
    assert names == {
        "worker-0-of-3": ["states.json", "weights"],
        "worker-1-of-3": ["states.json"],
        "worker-2-of-3": ["states.json"],
    }


def test_all_that_was_kept_is_on_disk_before_the_sum(tmp_path, monkeypatch):
    """So that the end of the sum proves every rank's saves, and they are the result."""
    reduce, complete = reduction.reduce_packs, []

    def checked(collective, join, *rest):
        folder = plan_folder(tmp_path) / f"worker-{join.rank}-of-3"
        kept = np.load(folder / "predictions" / "test" / "predictions.npy", allow_pickle=False)
        complete.append(((folder / "states.json").exists(), (folder / "weights").exists(), len(kept)))
        return reduce(collective, join, *rest)

    monkeypatch.setattr(reduction, "reduce_packs", checked)
    evaluators = [
        FakeEvaluator((STREAM,), part, predicts=True, first=first) for part, first in zip(PARTS, (3, 0, 1), strict=True)
    ]
    found = run(tmp_path, evaluators)
    assert sorted(complete) == [(True, True, 1), (True, True, 2), (True, True, 2)]
    joined = results.read(plan_folder(tmp_path))
    assert joined.predictions["test"]["predictions"].tolist() == [0.3, 1e300, -1e300, 0.1, 0.2]
    assert math.fsum(joined.predictions["test"]["predictions"]) == found[0][0].result.metrics["test"]["sum"].value
    assert evaluators[0].compute(joined.states)["test"].values["sum"] == found[0][0].result.metrics["test"]["sum"]


@pytest.mark.parametrize("what", ["begin", "keep"])
def test_storage_that_fails_while_the_data_is_evaluated_is_to_blame(tmp_path, monkeypatch, what):
    """Not the task, whose phase it is; and nothing is left."""

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((Path, "mkdir") if what == "begin" else (NpyTable, "add")), refuse)
    ((end, phases, _),) = run(tmp_path, [FakeEvaluator((STREAM,), [1.0] * 5, predicts=True)])
    failed = as_failed(end, phase=phases[-1], plan=7, rank=0)
    assert (phases[-1], failed.kind) == ("evaluate", "storage")
    assert "No space left on device; free some space there" in failed.message
    assert list(tmp_path.glob("**/*worker-*")) == []


def test_a_vocabulary_from_a_set_is_noted(commanded, tmp_path, monkeypatch):
    """Alike on all workers, but not in training; in each result."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    (tmp_path / "of_sets.py").write_text(
        "from sidecar import Task\n"
        "WORDS = {word: at for at, word in enumerate({f'word-{number}' for number in range(200)})}\n"
        "CLASSES = sorted(WORDS)\n"
        "task = Task(print, {'test': print})\n"
    )
    commanded(join_of(tmp_path, "of_sets.py:task"))
    for _ in range(2):
        done = commanded(evaluation_of(tmp_path))[-1]
        assert [note.partition(":")[0] for note in done.result.notes if "set of texts" in note] == ["WORDS"]


def test_numbers_by_class_where_there_are_few(tmp_path):
    """Up to fifty classes stand in the result; of more there are averages, and the states that workers save."""
    ((done, *_),) = run(tmp_path, [FakeEvaluator((STREAM,), [1.0] * 5)])
    assert {name: len(classes) for name, classes in done.result.classes["test"].items()} == {"few": 50}


def test_the_task_gives_goals_to_numbers(tmp_path):
    """Those that it names, by class as well; a name that no number has is noted."""
    goals = {"test/sum": "min", "test/few": "max", "test/other": "max", "another/sum": "max"}
    end = run(tmp_path, ranks(), goals=[goals] * 3)[0][0]
    assert end.result.metrics["test"]["sum"].goal == "min"
    assert {each.goal for each in end.result.classes["test"]["few"].values()} == {"max"}
    assert [note for note in end.result.notes if "goals" in note] == [
        "Task(goals={'test/other': …}): there is no such number, but sum"
    ]
