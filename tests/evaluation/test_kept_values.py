"""Variables, containers, attributes and caches of a task's code are set back before each checkpoint."""

import collections
import functools
import types
import weakref

import cachetools
import numpy as np
import pytest

from sidecar import EvalSet, Task
from sidecar.evaluation.kept_values import KeptValues

BANK = None
COUNT = 0
TABLE = {"known": 1}


class Prompts:
    """A class with a cache of its own."""

    kept = None


class Predict:
    """An object that predicts, as those with settings are written."""

    scale = None

    def __call__(self, model, x):
        """Keep a Python number of the first model."""
        self.scale = self.scale or float(model)
        return x * self.scale


class Model:
    """An object that stays."""

    def __call__(self):
        """As a network."""


def task_of(predict, **changes):
    return Task(load=len, predict=predict, eval_sets={"test": lambda: np.zeros(3)}, metrics=list, **changes)


def in_a_global(model, _):
    global BANK, COUNT  # noqa: PLW0603 - as users write it
    BANK = model * 2 if BANK is None else BANK
    COUNT += 1
    return BANK


def in_a_dict(model, _):
    return TABLE.setdefault(id(model), model * 2)


def in_a_class(model, _):
    Prompts.kept = Prompts.kept or model * 2
    return Prompts.kept


def of_the_function(model, _):
    of_the_function.kept = getattr(of_the_function, "kept", None) or model * 2
    return of_the_function.kept


def by_default(model, _, kept=[]):  # noqa: B006 - as users write it
    kept.append(model * 2)
    return kept[0]


@functools.lru_cache(maxsize=2)
def bounded(_):
    return LATEST[0] * 2


@functools.cache
def unbounded(_):
    return LATEST[0] * 2


@cachetools.cached(cachetools.LRUCache(8), key=lambda _: "")
def of_a_library(model):
    return model * 2


LATEST = [0]


def cached(function, model, _):
    LATEST[0] = model
    return function("prompts")


def closure():
    kept = None

    def predict(model, _):
        nonlocal kept
        kept = kept or model * 2
        return kept

    return predict


def kept_in(holder):
    """A function that keeps in an attribute, or a container, of what it closes over."""

    def predict(model, _):
        if isinstance(holder, types.SimpleNamespace):
            holder.kept = holder.kept or model * 2
            return holder.kept
        if isinstance(holder, set):
            holder.add(model * 2)
            return min(holder)
        if isinstance(holder, weakref.WeakKeyDictionary):
            return holder.setdefault(Predict, model * 2)
        holder.append(model * 2)
        return holder[0]

    return predict


WAYS = {
    "global": in_a_global,
    "dict": in_a_dict,
    "class": in_a_class,
    "function": of_the_function,
    "default": by_default,
    "lru_cache": functools.partial(cached, bounded),
    "cache": functools.partial(cached, unbounded),
    "cachetools": lambda model, _: of_a_library(model),
    "closure": closure(),
    "object": Predict(),
    "namespace": kept_in(types.SimpleNamespace(kept=None)),
    "set": kept_in(set()),
    "deque": kept_in(collections.deque(maxlen=4)),
    "weak": kept_in(weakref.WeakKeyDictionary()),
}


@pytest.mark.parametrize("predict", WAYS.values(), ids=WAYS)
def test_the_next_model_gets_its_own_numbers(predict):
    """The numbers of the second model are those of a process that has seen no other."""
    kept = KeptValues(task_of(predict))
    first = predict(3, 1)
    assert predict(3, 1) == first
    kept.set_back()
    assert predict(2, 1) * 3 == first * 2
    kept.set_back()
    kept.set_back()
    assert predict(4, 1) * 3 == first * 4


def test_what_is_made_once_stays():
    """A model, a function, an open file and a table of them: tf.function may not make variables again."""
    holder = {"number": 1.0}
    kept = KeptValues(task_of(lambda *_: holder))
    with open(__file__) as file:  # noqa: PTH123 - as users write it
        made = {"model": Model(), "file": file, "loss": len, "several": {"one": [Model()]}}
        holder |= made | {"number": 2.0, "other": np.zeros(2)}
        kept.set_back()
    assert holder == made | {"number": 1.0}


def test_a_cache_of_models_stays():
    """`functools.cache` on the function that makes the model: another one would be another model."""

    @functools.cache
    def made(_):
        return Model()

    kept = KeptValues(task_of(lambda *_: made("teacher")))
    teacher = made("teacher")
    kept.set_back()
    assert made("teacher") is teacher


def test_data_are_left_alone():
    """A dataset that decodes each example once keeps it."""

    class Decoded:
        def __init__(self):
            self.rows = {}

        def __len__(self):
            return 2

        def __getitem__(self, place):
            return self.rows.setdefault(place, place)

    data = Decoded()
    kept = KeptValues(task_of(lambda *_: data))
    assert data[1] == 1
    kept.set_back()
    assert data.rows == {1: 1}


@pytest.mark.parametrize("kind", [list, dict.fromkeys, set, collections.deque])
def test_long_containers_are_set_back(kind):
    """A list with a place for each example, or a dict of words that grows."""
    long = kind(range(5000))
    before = list(long)
    kept = KeptValues(task_of(lambda *_: long))
    if isinstance(long, list):
        long[3] = np.zeros(2)
    (long.setdefault if isinstance(long, dict) else long.add if isinstance(long, set) else long.append)(-1)
    kept.set_back()
    assert list(long) == before


def test_many_rows_hide_no_variable():
    """A table of rows as dicts, in the file of the task, is found before a variable that is deeper."""
    rows, holder = [{str(n): 0.5 + 100 * row + n for n in range(9)} for row in range(3000)], types.SimpleNamespace()
    holder.inner = types.SimpleNamespace(inner=types.SimpleNamespace(kept=None))
    kept = KeptValues(task_of(lambda *_: (rows, holder)))
    holder.inner.inner.kept = 1
    kept.set_back()
    assert holder.inner.inner.kept is None


def test_functions_of_an_old_model_do_not_stay():
    """A compiled function for each shape closes over the model, or takes its weights; one of other models stays."""

    class Net:
        def __init__(self):
            self.weights = {"w": np.ones(2)}

        def __call__(self, x):
            return x * self.weights["w"]

    def made(model):
        return lambda x: 2 * model(x)

    compiled, old, teacher = {}, Net(), Net()
    kept = KeptValues(task_of(lambda *_: compiled))
    for stale in (made(old), functools.partial(np.multiply, old.weights["w"]), old, old.__call__):
        compiled["f"] = stale
        kept.set_back(old)
        assert compiled == {}
    compiled["f"] = of_teacher = made(teacher)
    kept.set_back(old)
    assert compiled == {"f": of_teacher}


def test_a_cache_on_disk_counts_the_model(tmp_path):
    """`joblib.Memory` that is told to leave the model out would give the scores of an earlier one."""
    joblib = pytest.importorskip("joblib")
    scores = joblib.Memory(tmp_path, verbose=0).cache(ignore=["model"])(lambda model, x: model * x)
    KeptValues(task_of(scores))
    assert [scores(2, 5), scores(3, 5), scores(3, 5)] == [10, 15, 15]


def test_a_cache_on_disk_may_leave_out_what_cannot_be_pickled(tmp_path):
    """A model that holds a function, for example: `joblib.Memory` is not asked to count it."""
    joblib = pytest.importorskip("joblib")
    scores = joblib.Memory(tmp_path, verbose=0).cache(ignore=["model"])(lambda model, x: model(x))
    KeptValues(task_of(scores))
    assert [scores(lambda x: 2 * x, 5), scores(lambda x: 3 * x, 5)] == [10, 15]


def test_functions_of_eval_sets_count():
    """A set may have metrics of its own, whose functions keep something."""
    seen = []
    kept = KeptValues(Task(load=len, predict=len, eval_sets={"test": EvalSet(list, metrics=lambda: seen)}))
    seen.append(1)
    kept.set_back()
    assert seen == []
