"""The loop: which checkpoint is evaluated, tried again, skipped, and when the loop ends."""

import itertools
import logging
from pathlib import Path

import pytest
from fakes import FakeClock

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.errors import EvaluationFailedError
from sidecar.evaluation.failures import EvaluationError
from sidecar.keras.evaluation_loop import EvaluationLoop, LoopRules, number_in
from sidecar.protocol.records import Checkpoint, Settlement
from sidecar.protocol.states import Verdict


def found(name, step=None, format_name="tf_object"):
    """A checkpoint that a scan found."""
    checkpoint = Checkpoint(name=name, digest="d", step=step, format=format_name)
    return DiscoveredCheckpoint(checkpoint=checkpoint, folder=Path("/ckpts"), written_at=0.0, seen_at=0.0)


class _Watch:
    """Returns checkpoints in a given order; None means that there is no new one."""

    def __init__(self, *checkpoints):
        self.coming = list(checkpoints)
        self.evaluated, self.finished, self.corrupt, self.replaced = [], [], [], []

    def next(self):
        return self.coming.pop(0) if self.coming else None

    def path(self, checkpoint):
        return f"/ckpts/{checkpoint.checkpoint.name}"

    def is_unchanged(self, _):
        return not (self.replaced and self.replaced.pop(0))

    def finish(self, checkpoint, *, is_evaluated):
        if is_evaluated:
            self.evaluated.append(checkpoint.checkpoint.name)
        self.finished.append(checkpoint.checkpoint.name)

    def glance(self):
        """Pin nothing while an evaluation runs."""

    def given_up(self):
        given_up, self.corrupt = self.corrupt, []
        return given_up

    def problem(self):
        return "ckpt-1 is not used: a shard is missing."


class _Evaluation:
    """Fails as often as it is told, by name."""

    def __init__(self, **failures):
        self.failures = {name.replace("_", "-"): list(each) for name, each in failures.items()}
        self.restored = []

    def restore(self, checkpoint, path):
        self.restored.append(checkpoint.checkpoint.name)
        if kinds := self.failures.get(checkpoint.checkpoint.name):
            raise EvaluationError(kinds.pop(0), f"{path} is odd")

    def evaluate(self, _, tick):
        tick()
        return 3, {"loss": 0.5}


class _Run:
    """A loop that ends after some sleeps at the latest."""

    def __init__(self, watch, evaluation=None, **rules):
        self.watch, self.evaluation, self.clock = watch, evaluation or _Evaluation(), FakeClock()
        self.rules, self.slept, self.results = LoopRules(**rules), [], []

    def __call__(self):
        def sleep(seconds):
            self.slept.append(seconds)
            self.clock.seconds += seconds
            assert len(self.slept) < 1000, "the loop does not end"

        loop = EvaluationLoop(
            self.watch, self.evaluation, self.rules, clock=self.clock, sleep=sleep, report=self.results.append
        )
        loop.run()
        return [result.checkpoint for result in self.results]


def test_it_ends_after_the_numbered_checkpoint():
    """The number in the name counts, not the number of evaluations."""
    run = _Run(_Watch(found("ckpt-1"), None, found("ckpt-9"), found("ckpt-10")), max_evaluations=5)
    assert run() == ["ckpt-1", "ckpt-9"]
    assert run.watch.finished == ["ckpt-1", "ckpt-9"]
    assert run.slept == [1.0]


def test_names_without_a_number_count_as_one_evaluation_each():
    """As for a file that is saved again and again under one name."""
    last = (found("last", format_name="hdf5") for _ in itertools.count())
    run = _Run(_Watch(*itertools.islice(last, 9)), max_evaluations=2)
    assert run() == ["last", "last"]


@pytest.mark.parametrize("most", [None, 0])
def test_without_a_number_it_ends_when_nothing_comes(most):
    """`max_evaluations` of 0 means no end, as in Keras 2."""
    run = _Run(_Watch(found("ckpt-1"), None, found("ckpt-2")), max_evaluations=most, stop_idle_seconds=5)
    assert run() == ["ckpt-1", "ckpt-2"]
    assert run.slept == [1.0] * 6


@pytest.mark.parametrize("kind", ["corrupt", "storage"])
def test_a_failed_load_is_tried_again(kind, caplog):
    """With longer and longer pauses, and a message that says so."""
    run = _Run(_Watch(found("ckpt-1")), _Evaluation(ckpt_1=[kind] * 3), max_evaluations=1)
    assert run() == ["ckpt-1"]
    assert run.slept == [1.0, 2.0, 4.0]
    assert caplog.text.count("Retrying") == 3


def test_a_checkpoint_that_cannot_be_loaded_is_skipped(caplog):
    """In one sentence, and the next one is evaluated."""
    run = _Run(_Watch(found("ckpt-1"), found("ckpt-2")), _Evaluation(ckpt_1=["corrupt"] * 9), max_evaluations=2)
    assert run() == ["ckpt-2"]
    assert (run.watch.finished, run.watch.evaluated) == (["ckpt-1", "ckpt-2"], ["ckpt-2"])
    assert len(run.evaluation.restored) == 5
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "ckpt-1" in error.getMessage()


def test_a_deleted_checkpoint_is_skipped_at_once():
    """A retry cannot help."""
    run = _Run(_Watch(found("ckpt-1"), found("ckpt-2")), _Evaluation(ckpt_1=["vanished"]), max_evaluations=2)
    assert run() == ["ckpt-2"]
    assert run.slept == []


def test_files_that_change_while_they_are_read_are_read_again():
    """The weights could be of two checkpoints."""
    run = _Run(_Watch(found("ckpt-1")), max_evaluations=1)
    run.watch.replaced = [True]
    assert run() == ["ckpt-1"]
    assert run.evaluation.restored == ["ckpt-1", "ckpt-1"]


def test_a_wrong_model_is_an_error():
    """The first checkpoint does not fit it."""
    run = _Run(_Watch(found("ckpt-1")), _Evaluation(ckpt_1=["mismatch"]))
    with pytest.raises(EvaluationFailedError, match="ckpt-1"):
        run()


def test_a_checkpoint_of_another_model_is_skipped():
    """After one that fits."""
    checkpoints = found("ckpt-1"), found("ckpt-2"), found("ckpt-3")
    run = _Run(_Watch(*checkpoints), _Evaluation(ckpt_2=["mismatch"]), max_evaluations=3)
    assert run() == ["ckpt-1", "ckpt-3"]


def test_the_last_checkpoint_must_be_evaluated():
    """Otherwise the loop would wait for ever, as that of Keras 2."""
    run = _Run(_Watch(found("ckpt-2")), _Evaluation(ckpt_2=["corrupt"] * 9), max_evaluations=2)
    with pytest.raises(EvaluationFailedError, match="ckpt-2"):
        run()
    run = _Run(_Watch(None), max_evaluations=2)
    run.watch.corrupt = [Settlement(name="ckpt-2", digest="d", step=None, verdict=Verdict.CORRUPT, reason="truncated")]
    with pytest.raises(EvaluationFailedError, match="truncated"):
        run()


def test_the_user_is_told_if_there_is_no_checkpoint(caplog):
    """Every `timeout_seconds`, with the reason if one is known, and not after an evaluation."""
    run = _Run(_Watch(*[None] * 70, found("ckpt-1")), stop_idle_seconds=100, timeout_seconds=30)
    assert run() == ["ckpt-1"]
    told = [record.getMessage() for record in caplog.records if "No checkpoints appear" in record.getMessage()]
    assert len(told) == 2
    assert "after 30 seconds" in told[0]
    assert "a shard is missing" in told[0]


def test_names_cannot_control_a_terminal(caplog):
    """A name may hold any character."""
    name = "ckpt\n\x1b[31m\udcff<script>"
    run = _Run(_Watch(found(name), found("ckpt-2")), _Evaluation(**{name: ["vanished"]}), max_evaluations=2)
    assert run() == ["ckpt-2"]
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.isprintable()


@pytest.mark.parametrize(
    ("name", "format_name", "number"),
    [
        ("ckpt-7", "tf_object", 7),
        ("run/ckpt-0007", "tf_object", 7),
        ("epoch-03.keras", "keras", 3),
        ("e-4.weights.h5", "hdf5", 4),
        ("12", "orbax", 12),
        ("epoch_03.keras", "keras", None),
        ("w.03-0.92.h5", "hdf5", None),
        ("last.keras", "keras", None),
        ("ckpt-" + "9" * 30, "tf_object", None),
        ("", "tf_object", None),
    ],
)
def test_numbers_in_names(name, format_name, number):
    """Only a number at the end, after `-` or alone, as Keras 2 took it."""
    assert number_in(name, format_name) == number_in(name) == number


def test_a_step_that_is_not_the_number_is_reported():
    """The iterations of the optimizer, for instance."""
    run = _Run(_Watch(found("ckpt-1", 32)), max_evaluations=1)
    run()
    assert [(each.step, each.examples, each.metrics) for each in run.results] == [(32, 3, {"loss": 0.5})]
