"""TensorFlow inside the test process, imported once; and evaluations by any number of ranks without processes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from evaluation.data.sources_of_files import COUNTS
from evaluation.fake_framework import (
    STREAM,
    FakeBackend,
    FakeEvaluator,
)

from sidecar import results
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.dispatcher import Dispatcher
from sidecar.evaluation.eval_loop import EXAMPLES
from sidecar.evaluation.failures import EvaluationError

_NAMES = (
    *("compiled", "differences", "file_contents", "finite", "keras_2", "keras_assets", "keras_file"),
    *("layer_tables", "measured_metric", "model", "non_variable_state", "nonfinite", "recurrent", "replay"),
    *("saved_graph", "sliced_metric", "step", "structure", "told_apart"),
)

BOTH_KERASES = {f"test_{name}.py" for name in _NAMES}
"""Files whose tests run with Keras 3 and with tf_keras: the latter in `make test-all` alone."""


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if item.path.name in BOTH_KERASES and "tf_keras" in item.nodeid:
            item.add_marker(pytest.mark.nightly)


@dataclass(frozen=True)
class Evaluated:
    """Hold what ranks found together: values by eval set and metric, and how often something was traced."""

    values: dict
    examples: dict
    traces: list
    builds: list
    streams: list
    nonfinite: dict
    notes: tuple
    slices: dict

    def __getitem__(self, metric):
        return self.values["test"][metric]

    @property
    def hexes(self):
        """Every number to the bit."""
        return {(name, metric): value.hex for name, each in self.values.items() for metric, value in each.items()}


@pytest.fixture(scope="session")
def evaluate(digits):
    """Evaluates paths one after the other with some ranks in this process; one `Evaluated` for each path."""
    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data import nonfinite
    from sidecar.evaluation.output_comparison import differing_outputs

    del digits

    def run(task, *paths, ranks=1, cache_bytes=1 << 30, trust=False):
        evaluators = [
            KerasEvaluator.build(task, Shard(rank, ranks), threads=2, cache_bytes=cache_bytes, trust_saved_graph=trust)
            for rank in range(ranks)
        ]
        found = []
        for path in paths:
            again = True
            while again:
                streams = []
                for each in evaluators:
                    streams.append(each.read(lambda: None))
                    each.restore(path)()
                assert len({each.digest()() for each in evaluators}) == 1, "as the hello compares them"
                if ranks > 1:
                    assert not list(differing_outputs([each.outputs() for each in evaluators]))
                states = [each.evaluate(lambda: None) for each in evaluators]
                total = states[0]
                for name, by_name in total.items():
                    for state, own in by_name.items():
                        parts = [other[name][state] for other in states]
                        rows = np.any([part.used() for part in parts], axis=0)
                        own.unpack(np.sum([part.pack(rows) for part in parts], axis=0), rows)
                (again,) = {each.begins_again(total) for each in evaluators}
            examples = {name: int(by_name[EXAMPLES].integers()) for name, by_name in total.items()}
            numbers = [each.compute(total) for each in evaluators]
            assert all(one == numbers[0] for one in numbers)
            notes = numbers[0]["test"].notes if "test" in numbers[0] else ()
            values = [{name: each.values for name, each in found.items()} for found in numbers]
            assert all(one == values[0] for one in values)
            traces, builds = [each.traces for each in evaluators], [each.builds for each in evaluators]
            told = nonfinite.totals(streams[0], total)
            slices = {name: each.slices for name, each in numbers[0].items()}
            found.append(Evaluated(values[0], examples, traces, builds, streams, told, notes, slices))
        return found if len(found) > 1 else found[0]

    return run


@pytest.fixture
def batches(digits):
    """Makes the `Batches` of a source."""
    del digits
    from sidecar.evaluation.backends.tensorflow.data import Batches
    from sidecar.evaluation.data.cache import CacheBudget
    from sidecar.evaluation.task import EvalSet

    def make(source, *, batch_size=4, rank=0, ranks=1, cache=1 << 20, budget=None):
        eval_set = source if isinstance(source, EvalSet) else EvalSet(source)
        budget = budget or CacheBudget(cache)
        return Batches("test", eval_set, batch_size=batch_size, shard=Shard(rank, ranks), threads=2, budget=budget)

    return make


@pytest.fixture
def refusal(batches):
    """Kind and message of what is raised by making and reading a source."""

    def use(source, **changes):
        made = batches(source, **changes)
        made.first()
        made.read(lambda: None)
        for _ in range(2):
            list(made.own())

    def run(source, **changes):
        with pytest.raises(EvaluationError) as caught:
            use(source, **changes)
        return caught.value.kind, str(caught.value)

    return run


@pytest.fixture
def commanded(tmp_path):
    """Runs commands; returns their reports."""
    (tmp_path / "a_task.py").write_text("from sidecar import Task\ntask = Task(print, {'test': print})\n")
    reports = []
    commands = Dispatcher(FakeBackend(FakeEvaluator((STREAM,), [1.0] * 5)), reports.append)

    def run(command):
        reports.clear()
        commands.run(command)
        return list(reports)

    return run


@pytest.fixture
def model_text(tmp_path):
    path = tmp_path / "model-1.txt"
    path.write_text("1")
    return path


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model-1.npy"
    np.save(path, np.random.default_rng(4).normal(size=(5, 3)))
    return path


@pytest.fixture
def numbers(digits):
    """A source of (0, 0), (1, 1) and so on."""
    del digits
    import tensorflow as tf

    def make(count=10):
        return lambda: tf.data.Dataset.range(count).map(lambda each: (each, each))

    return make


@pytest.fixture
def records(digits, tmp_path):
    """Writes files of records "f0", "f1", … and returns the pattern of their names."""
    del digits
    import tensorflow as tf

    def write(counts=COUNTS, folder="data", compression=None):
        (tmp_path / folder).mkdir()
        for number, count in enumerate(counts):
            with tf.io.TFRecordWriter(str(tmp_path / folder / f"test-{number}.tfrecord"), compression) as file:
                for record in range(count):
                    file.write(f"{number}{record}".encode())
        return str(tmp_path / folder / "test-*.tfrecord")

    return write


@pytest.fixture
def digit_files(digits, tmp_path):
    """The held-out digits in two files of records, and how to parse one."""
    import tensorflow as tf

    x, y = digits.held_out_arrays()
    for number, part in enumerate(np.array_split(np.arange(len(y)), 2)):
        with tf.io.TFRecordWriter(str(tmp_path / f"digits-{number}.tfrecord")) as file:
            for index in part:
                file.write(x[index].tobytes() + y[index].tobytes())

    def parse_digit(record):
        image = tf.io.decode_raw(tf.strings.substr(record, 0, 256), tf.float32)
        label = tf.io.decode_raw(tf.strings.substr(record, 256, 8), tf.int64)
        return tf.reshape(image, (8, 8, 1)), tf.reshape(label, ())

    return str(tmp_path / "digits-*.tfrecord"), parse_digit


@pytest.fixture
def evaluated(digits, evaluate, tmp_path):
    """Evaluates with some ranks, each of which saves; what was published, and what was saved."""
    from sidecar.evaluation.artifact_writer import ArtifactWriter
    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard

    del digits

    def run(task, path, ranks):
        folder = tmp_path / f"{ranks}"
        evaluators = [
            KerasEvaluator.build(task, Shard(rank, ranks), threads=2, cache_bytes=1 << 30) for rank in range(ranks)
        ]
        for rank, each in enumerate(evaluators):
            each.read(lambda: None)
            each.restore(path)()
            with ArtifactWriter(folder / f"worker-{rank}-of-{ranks}", in_parallel=ThreadPoolExecutor(1)) as made:
                made.begin(each.save_weights)
                states = each.evaluate(lambda: None, made.keep)
                made.finish(states, each.digest()())
        found = results.read(folder)
        merged = evaluators[-1].compute(found.states)
        published = evaluate(task, path)  # the same bits as by any number of ranks
        assert {name: {key: value.hex for key, value in each.values.items()} for name, each in merged.items()} == {
            name: {key: value.hex for key, value in each.items()} for name, each in published.values.items()
        }
        return published, found

    return run


@pytest.fixture
def task_refusal(digits, trained):
    """Builds and evaluates a task; returns phase and report of what is raised."""
    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.failures import as_failed

    def run(task):
        phase = "build"
        try:
            evaluator = KerasEvaluator.build(task, Shard(0, 1), threads=2, cache_bytes=1 << 20)
            phase = "read"
            evaluator.read(lambda: None)
            evaluator.restore(trained.path("model"))()
            phase = "evaluate"
            states = evaluator.evaluate(lambda: None)
            phase = "conclude"
            evaluator.compute(states)
        except Exception as error:  # noqa: BLE001 - as a worker does
            return as_failed(error, phase=phase, plan=1, rank=0)
        pytest.fail("nothing was raised")

    del digits
    return run
