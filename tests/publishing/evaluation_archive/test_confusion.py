"""The picture has the counts that `ConfusionMatrix` itself reads, whoever divided the examples."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from journals import Journal

from sidecar.evaluation.artifact_writer import ArtifactWriter
from sidecar.evaluation.metrics.tally import Tally
from sidecar.evaluation.states import ExactSum, named
from sidecar.protocol.records import Value
from sidecar.publishing.evaluation_archive.confusion import matrices

CLASSES = ("cat", "dog", 'a "b"', "\u202eevil")


def result_of(names=CLASSES, eval_sets=("test",)):
    """The result of an evaluation with numbers of these classes."""
    journal = Journal()
    journal.plan()
    by_class = {"recall": {name: Value(value=0.5, hex=(0.5).hex()) for name in names}}
    return journal.succeed(classes=by_class, eval_sets=eval_sets).outcome.result


def saved(tally_states, *, eval_set="test", metric="confusion_matrix", others=()):
    """The file states.json of a rank."""
    states = {name: ExactSum((), "int64").to_json() for name in others}
    states |= {f"{metric}/{name}": state.to_json() for name, state in tally_states.items()}
    return json.dumps({"schema": 1, "variables": "v", "predictions": {}, "states": {eval_set: states}}).encode()


def counted(pairs, weights=None, size=4):
    """A tally and its states after adding (actual, predicted) pairs."""
    tally = Tally((size, size))
    states = tally.states()
    cells = np.array([actual * size + predicted for actual, predicted in pairs])
    tally.add(states, cells, np.ones(len(pairs), np.float32) if weights is None else np.array(weights, np.float32))
    return tally, states


def test_counts_of_all_ranks_are_added():
    """A row for each actual class."""
    ranks = [counted([(0, 0), (0, 1), (3, 3)]), counted([(0, 1), (2, 0)])]
    (found,) = matrices(result_of(), [saved(states, others=("examples", "loss")) for _, states in ranks])
    assert (found["set"], found["metric"], found["classes"]) == ("test", "confusion_matrix", list(CLASSES))
    expected = sum(tally.totals(states) for tally, states in ranks)
    assert found["matrix"] == expected.tolist()
    assert found["matrix"][0] == [1, 2, 0, 0]


def test_weights():
    """Weights that are not whole numbers have exact sums, which are read as the metric reads them."""
    weights = [0.1, 0.25, 3.5, 1e-20, 1.0, 7e8]
    tally, states = counted([(0, 0), (0, 0), (1, 2), (1, 1), (1, 1), (3, 0)], weights)
    (found,) = matrices(result_of(), [saved(states)])
    assert np.allclose(found["matrix"], tally.totals(states), rtol=1e-12, atol=0)


def test_each_eval_set_has_its_own():
    """A set without a matrix does not get that of the next one."""
    _, states = counted([(1, 1)])
    parts = {
        "train": {"examples": ExactSum((), "int64").to_json()},
        "test": {f"confusion_matrix/{name}": state.to_json() for name, state in states.items()},
    }
    content = json.dumps({"schema": 1, "variables": "v", "predictions": {}, "states": parts}).encode()
    found = matrices(result_of(eval_sets=("test", "train")), [content])
    assert [each["set"] for each in found] == ["test"]


def test_no_matrix_without_classes():
    """A metric whose classes are not in the journal has no picture."""
    _, states = counted([(1, 1)])
    assert matrices(result_of(CLASSES[:3]), [saved(states)]) == []


DAMAGE = {
    "not JSON": lambda text: text.replace('"rows"', '"rows'),
    "another shape": lambda text: text.replace("[4, 4]", "[4, 5]"),
    "a huge shape": lambda text: text.replace("[4, 4]", "[1000000000, 1000000000]"),
    "rows that are too short": lambda text: text.replace('"0": [', '"0": [1], "1": ['),
    "no numbers": lambda text: text.replace('"0": [1', '"0": ["x"'),
    "an unknown row": lambda text: text.replace('"0": [', '"99": ['),
    "a list": lambda text: text.replace('/counts": {', '/counts": {}, "x": {'),
    "deep nesting": lambda text: text.replace('"rows": {', '"rows": ' + "[" * 100_000, 1),
    "NaN": lambda text: text.replace('"0": [1', '"0": [NaN'),
    "infinity": lambda text: text.replace('"0": [1', '"0": [Infinity'),
    "sums that would overflow": lambda text: text.replace('"0": [1', '"0": [1e308'),
    "no shape": lambda text: text.replace('"shape"', '"form"'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_states_are_left_out(damage):
    """The files are not trusted: there is no picture then, and no error."""
    _, states = counted([(0, 0)])
    text = saved(states).decode()
    broken = DAMAGE[damage](text)
    assert broken != text
    assert matrices(result_of(), [broken.encode(errors="surrogatepass")]) == []


HOSTILE = {
    "quotes": ('\\"', 1 << 23),
    "names": ('"m/counts": {', 1_200_000),
    "unfinished objects": ('"m/counts": {' + '"a": {}, ' * 900, 1_000),
    "many matrices": ('"m/counts": {"shape": [4, 4], "dtype": "int64", "rows": {}}, "m/weights": {}, ', 200_000),
}


@pytest.mark.timeout(60)  # the daemon's other threads wait meanwhile: matching quotes took two minutes
@pytest.mark.parametrize(("part", "times"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_states_take_little_time(part, times):
    """Sixteen megabytes of anything take at most seconds."""
    content = '{"states": {"test": {' + part * times
    assert matrices(result_of(), [content.encode()]) == []


def test_files_are_held_one_at_a_time():
    """64 ranks of 16 MB each would take a gigabyte."""
    _, states = counted([(1, 1)])
    held = []

    class Content(bytes):
        def __del__(self):
            held.remove(id(self))

    def contents():
        for _ in range(5):
            content = Content(saved(states))
            held.append(id(content))
            assert len(held) <= 2  # the one before is dropped when this one is taken
            yield content

    (found,) = matrices(result_of(), contents())
    assert found["matrix"][1][1] == 5


def test_bytes_that_are_no_text():
    """Saved bytes that are not text give no matrix."""
    assert matrices(result_of(), [b"\xff\xfe\x00" * 1000]) == []


def test_what_workers_save(tmp_path):
    """The file is that of the real writer, with the states of a metric under the name that evaluations give it."""
    tally, states = counted([(0, 0), (0, 1), (2, 2)], [1.0, 0.5, 1.0])
    with ArtifactWriter(tmp_path / "worker-0-of-1", in_parallel=ThreadPoolExecutor(1)) as writer:
        writer.begin(None)
        writer.finish({"test": named("confusion_matrix", states)}, "v")
    content = (tmp_path / "worker-0-of-1" / "states.json").read_bytes()
    (found,) = matrices(result_of(), [content])
    assert (found["metric"], found["matrix"]) == ("confusion_matrix", tally.totals(states).tolist())
