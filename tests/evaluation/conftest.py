"""TensorFlow inside the test process, imported once; and evaluations by any number of ranks without processes."""

from dataclasses import dataclass

import numpy as np
import pytest

_NAMES = (
    *("batch_means", "layer_tables", "nonfinite", "recurrent", "replay", "restore_files", "saved_graph", "scripts"),
    *("several_numbers", "structures", "told_apart"),
)
BOTH_KERASES = {f"test_{name}.py" for name in _NAMES}
"""Files whose tests run with Keras 3 and with tf_keras: the latter in `make test-all` alone."""


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if item.path.name in BOTH_KERASES and "tf_keras" in item.nodeid:
            item.add_marker(pytest.mark.nightly)


@dataclass(frozen=True)
class Evaluated:
    """What ranks found together: values by eval set and metric, and how often something was traced."""

    values: dict
    examples: dict
    traces: list
    builds: list
    streams: list
    nonfinite: dict
    notes: tuple

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
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.eval_loop import EXAMPLES

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
            found.append(Evaluated(values[0], examples, traces, builds, streams, told, notes))
        return found if len(found) > 1 else found[0]

    return run


@pytest.fixture
def batches(digits):
    """Makes the `Batches` of a source."""
    del digits
    from sidecar.evaluation.backends.tensorflow.data import Batches
    from sidecar.evaluation.data.cache import CacheBudget
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.task import EvalSet

    def make(source, *, batch_size=4, rank=0, ranks=1, cache=1 << 20, budget=None):
        eval_set = source if isinstance(source, EvalSet) else EvalSet(source)
        budget = budget or CacheBudget(cache)
        return Batches("test", eval_set, batch_size=batch_size, shard=Shard(rank, ranks), threads=2, budget=budget)

    return make


@pytest.fixture
def refusal(batches):
    """Kind and message of what is raised by making and reading a source."""
    from sidecar.evaluation.failures import EvaluationError

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
