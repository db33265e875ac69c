"""Numbers that a task draws while it is imported are the same in all processes, and a note names them."""

import random

import numpy as np
import pytest

from sidecar.evaluation.seeded_draws import SeededDraws
from sidecar.evaluation.task_loader import load

DRAWS = {
    "numpy.random": "import numpy as np\nDRAWN = np.random.normal(size=3).tolist()",
    "random": "import random\nDRAWN = random.sample(range(1000), 5)",
    "numpy.random.default_rng()": "from numpy.random import default_rng\nDRAWN = default_rng().normal(size=3).tolist()",
}
TASK = """
from sidecar import Task
def task():
    return Task(load=len, predict=len, eval_sets={'test': list}, metrics=list)
"""


def imported(folder, name, source):
    import sys

    (folder / f"{name}.py").write_text(source + TASK)
    loaded = load(f"{name}.py:task", str(folder))
    return sys.modules.pop(loaded.modules[0]).DRAWN, loaded.notes


@pytest.mark.parametrize("kind", DRAWS)
def test_all_processes_draw_the_same(tmp_path, monkeypatch, kind):
    """And the generators go on from where they were, so that no two processes build the same random model."""
    monkeypatch.delitem(__import__("sys").modules, "keras", raising=False)
    random.seed(11)
    np.random.seed(11)  # noqa: NPY002
    first, notes = imported(tmp_path, f"one_{len(kind)}", DRAWS[kind])
    assert random.random() == random.Random(11).random()
    assert np.random.random() == np.random.RandomState(11).random()  # noqa: NPY002
    second, _ = imported(tmp_path, f"two_{len(kind)}", DRAWS[kind])
    assert first == second
    assert len(notes) == 1
    assert f"with {kind} while" in notes[0]


SEEDED = {
    "numpy": "import numpy as np\nnp.random.seed(7)\nDRAWN = np.random.normal(size=3).tolist()",
    "random": "import random\nrandom.seed(7)\nDRAWN = random.sample(range(1000), 5)",
    "default_rng": "import numpy as np\nDRAWN = np.random.default_rng(7).normal(size=3).tolist()",
    "nothing": "DRAWN = 3",
}


@pytest.mark.parametrize("kind", SEEDED)
def test_the_seed_of_the_task_holds(tmp_path, kind):
    """It may be that of training."""
    found, notes = imported(tmp_path, f"seeded_{kind}", SEEDED[kind])
    space = {}
    exec(SEEDED[kind], space)
    assert found == space["DRAWN"]
    assert notes == ()


def test_a_function_that_the_task_keeps_draws_anew_later():
    """`default_rng` itself is in place again, and a reference to the other one does the same."""
    original = np.random.default_rng
    with SeededDraws():
        replaced = np.random.default_rng
    assert np.random.default_rng is original
    assert replaced().random() != replaced().random()
    assert replaced(3).random() == original(3).random()
