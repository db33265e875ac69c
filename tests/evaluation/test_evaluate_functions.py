"""Functions of `Task(evaluate=…)` measure the model by themselves, once per evaluation, with any number of workers."""

import math
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.evaluate_functions import EvaluateFunctions
from sidecar.evaluation.failures import EvaluationError, as_failed
from sidecar.protocol.messages import Evaluate, Join
from sidecar.protocol.records import Checkpoint, Member
from sidecar.protocol.states import WorkerPhase


def task(functions, **more):
    return Task(load=lambda path: path, evaluate=functions, **more)


def run(functions, ranks=1, **more):
    """The functions of so many ranks, one after the other, and their states together."""
    made = [EvaluateFunctions(task(functions, **more), Shard(rank, ranks)) for rank in range(ranks)]
    states = [each.run("model", lambda: "digest", lambda: None) for each in made]
    for name, by_name in states[0].items():
        for key, own in by_name.items():
            parts = [other[name][key] for other in states]
            rows = np.any([part.used() for part in parts], axis=0)
            own.unpack(np.sum([part.pack(rows) for part in parts], axis=0), rows)
    return made[0], states[0]


def numbers(functions, ranks=1, **more):
    made, states = run(functions, ranks, **more)
    return {
        name: {key: float.fromhex(each.hex) for key, each in result.values.items()}
        for name, result in made.compute(states).items()
    }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_function_of_the_model_is_called_once_by_one_worker(ranks):
    """Workers take the functions in turn; numbers of numpy are taken as well, and examples are counted."""
    calls = []

    def first(model):
        calls.append(("first", model))
        return {"acc": np.float32(0.5), "nll": np.array(1), "examples": 40}

    def second(model):
        calls.append(("second", model))
        return {"acc": 1}

    made, states = run({"one": first, "two": second}, ranks)
    assert sorted(calls) == [("first", "model"), ("second", "model")]
    assert made.examples(states) == {"one": 40, "two": 0}
    assert numbers({"one": first, "two": second}, ranks) == {"one": {"acc": 0.5, "nll": 1.0}, "two": {"acc": 1.0}}
    assert "not checked for repeatability" in made.compute(states)["one"].notes[0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_function_of_a_shard_returns_totals_and_counts(ranks):
    """All workers call it; totals and counts are added up exactly, and divided once."""
    values = [0.1 * number for number in range(10)]

    def mean(_model, shard):
        mine = values[shard.rank :: shard.world_size]
        return {"mean": (math.fsum(mine), len(mine)), "examples": len(mine)}

    made, states = run({"shared": mean}, ranks)
    assert made.examples(states) == {"shared": 10}
    assert numbers({"shared": mean}, ranks)["shared"]["mean"] == pytest.approx(0.45, rel=1e-15)


def test_random_numbers_are_seeded_by_weights_and_name():
    """One evaluation repeats the numbers of another one, with any number of workers."""

    def draws(_model):
        return {"python": random.random(), "numpy": np.random.rand()}  # noqa: NPY002 - what a harness may use

    found = [numbers({"one": draws, "two": draws}, ranks) for ranks in (1, 2, 1)]
    assert found[0] == found[1] == found[2]
    assert found[0]["one"] != found[0]["two"]


def test_an_evaluation_that_begins_again_does_not_call_functions_again():
    """They may take hours. Other values of the model are measured anew."""
    models = []

    def measure(model):
        models.append(model)
        return {"length": len(model)}

    made = EvaluateFunctions(task({"one": measure}), Shard(0, 1))
    found = [made.run(model, lambda model=model: model, lambda: None) for model in ("first", "first", "other one")]
    assert models == ["first", "other one"]
    assert [made.compute(states)["one"].values["length"].value for states in found] == [5.0, 5.0, 9.0]


def test_a_number_that_is_not_finite_is_told():
    """It is published as such, with a note."""
    made, states = run({"one": lambda _model: {"loss": math.nan, "acc": 0.5}})
    result = made.compute(states)["one"]
    assert result.values["loss"].hex == "nan"
    assert "loss" in result.notes[1]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, ["by name", "None"]),
        ({}, ["0 numbers"]),
        ({str(number): 0 for number in range(257)}, ["257 numbers", "256"]),
        ({"acc": "0.6"}, ["'0.6'", "'acc'"]),
        ({"acc": True}, ["True"]),
        ({"acc": [0.5, 0.6]}, ["[0.5, 0.6]"]),
        ({"acc": 0.5, "examples": -1}, ["-1", "examples"]),
        ({"acc": 0.5, "examples": math.nan}, ["nan", "examples"]),
        ({"acc": 10**400}, ["'acc'", "1.8e308"]),
        ({1: 0.5}, ["by name"]),
    ],
)
def test_what_is_not_numbers_by_name_is_refused(returned, words):
    """One sentence names the function and what it returned."""
    with pytest.raises(EvaluationError) as caught:
        run({"harness": lambda _model: returned})
    assert [word for word in ["'harness'", *words] if word not in str(caught.value)] == []


def test_sums_without_a_count_are_refused():
    """A number of one worker alone says nothing about all questions."""
    with pytest.raises(EvaluationError, match=r"'acc'.*\(total, count\)"):
        run({"harness": lambda _model, shard: {"acc": 0.5 + shard.rank}})


def test_other_names_on_other_workers_are_refused():
    """Each worker returns each sum."""
    made, states = run({"one": lambda _model, shard: {str(shard.rank): (1, 1)}}, 2)
    with pytest.raises(EvaluationError, match=r"'one'.*0, 1"):
        made.compute(states)


def test_a_function_that_runs_too_long_is_ended():
    """The worker gives signs of life meanwhile; `except Exception` in the function does not hide the end."""
    alive = threading.Event()

    def endless(_model):
        while True:
            with suppress(Exception):
                alive.wait(0.001)

    made = EvaluateFunctions(task({"one": endless}, evaluate_timeout_seconds=0.2), Shard(0, 1))
    with pytest.raises(EvaluationError, match=r"'one'.*0\.2") as caught:
        made.run("model", lambda: "digest", alive.set)
    assert caught.value.kind == "task_error"
    assert alive.is_set()


@pytest.mark.parametrize("is_main", [True, False], ids=["main thread", "other thread"])
def test_a_call_that_waits_in_the_kernel_is_ended(is_main):
    """Such as a request to a server that does not answer. The signal's handler is the one of before afterwards."""
    reader, writer = os.pipe()
    found, before = [], signal.getsignal(signal.SIGUSR2)

    def wait(_model):
        while not is_main:
            time.sleep(0.01)
        return {"bytes": len(os.read(reader, 1))}

    def run_one():
        made = EvaluateFunctions(task({"one": wait}, evaluate_timeout_seconds=0.2), Shard(0, 1))
        with pytest.raises(EvaluationError, match=r"'one'.*0\.2"):
            made.run("model", lambda: "digest", lambda: None)
        found.append(True)

    if is_main:
        run_one()
    else:
        thread = threading.Thread(target=run_one)
        thread.start()
        thread.join(240)
    os.close(reader)
    os.close(writer)
    assert found == [True]
    assert signal.getsignal(signal.SIGUSR2) == before


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.002, 0.004])
def test_a_function_that_ends_as_its_time_ends(seconds):
    """It has returned, or it was ended. Nothing is raised later, where nobody expects it."""

    def brief(_model):
        time.sleep(seconds)
        return {"acc": 0.5}

    for _ in range(20):
        made = EvaluateFunctions(task({"one": brief}, evaluate_timeout_seconds=0.002), Shard(0, 1))
        with suppress(EvaluationError):
            made.run("model", lambda: "digest", lambda: None)


def test_the_report_of_an_error_names_the_function():
    """No batch is evaluated then."""

    def fail(_model):
        raise ValueError("boom")

    made = EvaluateFunctions(task({"harness": fail}), Shard(0, 1))
    with pytest.raises(ValueError, match="boom") as caught:
        made.run("model", lambda: "digest", lambda: None)
    failed = as_failed(caught.value, phase=WorkerPhase.EVALUATE, plan=1, rank=0)
    assert "raised while Task(evaluate={'harness': …}) ran" in failed.message


def test_numbers_of_any_kind_are_taken():
    """Those of the standard library and of numpy, as floats."""
    given = {"a": Fraction(1, 4), "b": Decimal("0.5"), "c": np.float16(0.25), "d": 3, "examples": Fraction(8, 2)}
    assert numbers({"one": lambda _model: given}) == {"one": {"a": 0.25, "b": 0.5, "c": 0.25, "d": 3.0}}


def no_argument():
    return {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"evaluate": {"one": 1}}, "'one'"),
        ({"evaluate": [len]}, "harness"),
        ({"evaluate": {"": len}}, "''"),
        ({"evaluate": {"one": lambda _a, _b, _c: {}}}, "model, shard"),
        ({"evaluate": {"one": no_argument}}, "model, shard"),
        ({"evaluate": {"one": len}, "evaluate_timeout_seconds": 0}, "0"),
        ({"evaluate": {"one": len}, "eval_sets": {"one": len}, "predict": len, "metrics": list}, "'one'"),
    ],
)
def test_a_wrong_task_is_refused(arguments, words):
    """Before anything is evaluated."""
    with pytest.raises(TaskError, match=words):
        Task(load=len, **arguments)


@pytest.mark.parametrize(
    ("page", "file", "found"),
    [
        ("write-a-task.md", "harness.py", {"harness": ({"acc": 0.6}, 40)}),
        ("custom-training-loops.md", "play.py", {"play": ({"return": 9.5}, 20)}),
    ],
)
def test_the_examples_of_the_docs(page, file, found):
    """The blocks are complete but for the harness, the episode and the model."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / page).read_text()
    code = text.partition(f"<!-- {file} -->\n```python\n")[2].partition("```")[0]
    names = {
        "Task": Task,
        "build_model": object,
        "run_my_harness": lambda _model: {"acc": 0.6, "questions": 40},
        "episode": lambda _model, seed: seed,
    }
    exec(code, names)
    made = EvaluateFunctions(names["task"], Shard(0, 1))
    states = made.run("model", lambda: "digest", lambda: None)
    numbers = {
        name: ({key: each.value for key, each in result.values.items()}, made.examples(states)[name])
        for name, result in made.compute(states).items()
    }
    assert numbers == found
    assert set(names["task"].goals) == {f"{name}/{key}" for name, (values, _) in found.items() for key in values}


def test_functions_need_a_model():
    """A stored graph has no model."""
    with pytest.raises(TaskError, match="build_model"):
        Task(evaluate={"one": len})


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_of_keras(tmp_path):
    """A task without eval sets restores the model and calls the function."""
    import keras

    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.rank_evaluation import RankEvaluation
    from sidecar.evaluation.reduction import LocalCollective

    def build():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])

    saved = build()
    saved.set_weights([3 * weight for weight in saved.get_weights()])
    saved.save_weights(tmp_path / "m.weights.h5")
    given = Task(build_model=build, evaluate={"sum": lambda model: {"weights": model.get_weights()[0].sum()}})
    done = RankEvaluation(
        command=Evaluate(
            plan=1,
            checkpoint=Checkpoint(name="m.weights.h5", digest="digest", step=1, format="keras_weights"),
            path=str(tmp_path / "m.weights.h5"),
            save_to=str(tmp_path / "saved" / "worker-0-of-1"),
            save_weights="none",
            progress_seconds=10.0,
        ),
        join=Join(
            group="group",
            members=(Member(0, "node", "w.0", ""),),
            rank=0,
            task="t",
            framework="tensorflow",
            search_path="/",
            threads=1,
        ),
        collective=LocalCollective(),
        evaluator=KerasEvaluator.build(given, Shard(0, 1), threads=1, cache_bytes=0),
        task_digest="t",
        profile={},
        enter=lambda _: None,
        report=lambda _: None,
        functions=EvaluateFunctions(given, Shard(0, 1)),
        in_parallel=ThreadPoolExecutor(1),
    ).run()
    assert done.result.metrics["sum"]["weights"].value == 6.0
