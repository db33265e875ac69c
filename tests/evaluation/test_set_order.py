"""Vocabularies in the order of a set of texts are noted, and no other ones."""

import json
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest

from sidecar.evaluation.set_order import globals_of, has_order_of_set, notes_on_sets


def words(count, seed=1):
    made = random.Random(seed)
    return ["".join(made.choices("abcdefghijklmnopqrstuvwxyz", k=made.randint(2, 12))) + str(at) for at in range(count)]


@pytest.mark.parametrize("count", [32, 50, 100, 1000, 5000, 60_000])
def test_the_order_of_a_set_is_recognised(count):
    """With special words before it, as vocabularies have them; sorted, shuffled and read in order it is another one."""
    for seed in range(20 if count < 5000 else 2):
        texts = words(count, seed)
        ordered = list(set(texts))
        assert has_order_of_set(ordered)
        assert has_order_of_set(["<pad>", "<unk>", *ordered])
        assert has_order_of_set(list(dict.fromkeys(frozenset(texts))))
        assert not has_order_of_set(texts)
        assert not has_order_of_set(sorted(texts))
        assert not has_order_of_set(random.Random(seed).sample(texts, count))
    assert not has_order_of_set(list(set(words(20))))


def test_the_order_of_another_process_is_none():
    """A vocabulary that training saved in the order of its own process is not suspected."""
    code = "import json, sys; print(json.dumps(list(set(json.loads(sys.stdin.read())))))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(words(500)), capture_output=True, text=True, check=True,
        env={"PYTHONHASHSEED": "77"},
    )  # fmt: skip
    assert not has_order_of_set(json.loads(done.stdout))


def test_it_is_found_where_tasks_and_models_hold_it():
    """Global variables, attributes of models and their parts, closures; named by the way that leads to it."""
    ordered = list(set(words(100)))
    part = SimpleNamespace(vocabulary={word: number for number, word in enumerate(ordered)})
    model = SimpleNamespace(_modules={"embedding": part}, other=sorted(ordered))

    def closed():
        return ordered

    assert "model._modules['embedding'].vocabulary" in notes_on_sets({"model": model}, "0")[0]
    assert "build.ordered" in notes_on_sets({"build": closed}, "0")[0]
    assert "WORDS: in the order of a set" in notes_on_sets({"WORDS": tuple(ordered)}, "0")[0]
    assert notes_on_sets({"WORDS": ordered}, "42") == ()
    assert notes_on_sets({"WORDS": sorted(ordered), "loop": [model.other]}, "0") == ()


def test_global_variables_are_those_of_the_users_modules():
    assert globals_of(["tests_that_nobody_has", __name__])["words"] is words
    assert "json" not in globals_of([__name__])
