"""A few sums stand for all predictions: any difference that matters shows in them, and rounding does not."""

from dataclasses import replace

import numpy as np
import pytest
from evaluation.fake_framework import (
    PARTS,
    STREAM,
    FakeEvaluator,
    ranks,
    run,
)

from sidecar.evaluation.failures import EvaluationError, as_failed
from sidecar.evaluation.output_comparison import differing_outputs, no_outputs, summary
from sidecar.protocol.messages import Done

MADE = np.random.default_rng(4)
SCORES = MADE.normal(size=(64, 1000)).astype(np.float32)


def groups(*predictions):
    rows = []
    for arrays in predictions:
        rows.append(no_outputs())
        rows[-1][2] = summary(arrays)
    return list(differing_outputs(rows))


@pytest.mark.parametrize(
    "other",
    [
        [SCORES * 1.01],
        [SCORES[:, ::-1]],
        [SCORES[::-1]],
        [SCORES[:32]],
        [SCORES + np.where(np.arange(1000) == 3, 0.5, 0).astype(np.float32)],
        [np.where(SCORES > 3, np.nan, SCORES)],
        [SCORES, SCORES[:, 0]],
    ],
)
def test_what_differs_is_found(other):
    assert groups([SCORES], other, [SCORES]) == [(2, [[0, 2], [1]])]


@pytest.mark.parametrize(
    "other",
    [
        [SCORES * np.float32(1 + 1e-6)],
        [SCORES + MADE.normal(scale=1e-6, size=SCORES.shape).astype(np.float32)],
        [SCORES, np.array(["texts"], object), np.zeros(8, np.uint8)],
    ],
)
def test_rounding_texts_and_digests_do_not_matter(other):
    assert groups([SCORES], other) == []
    for same in (np.nan, np.finfo(np.float64).max):
        assert groups([np.full(3, same)], [np.full(3, same)]) == []


def test_numbers_of_16_bits_round_more():
    half = SCORES.astype(np.float16)
    assert groups([half], [half * np.float16(1.001)]) == []
    assert groups([half], [half * np.float16(1.1)]) != []
    assert groups([SCORES + 1j * SCORES], [SCORES - 1j * SCORES]) != []


@pytest.mark.parametrize(
    ("what", "values", "words"),
    [
        (
            "plan",
            [7, 7, 8],
            "are not in the same plan (plan): rank 0 on node-0, rank 1 on node-1 against rank 2 on node-2",
        ),
        ("code", ["a", "b", "b"], "run different code of this program, because it was upgraded meanwhile (code)"),
        ("checkpoint", ["a", "b", "a"], "received different checkpoints (checkpoint)"),
        ("task", ["a", "b", "b"], "run different code of the task (task)"),
        (
            "profile",
            [{"isa": "avx"}, {"isa": "neon"}, {}],
            "compute with different versions, devices or settings (profile)",
        ),
    ],
)
def test_hello_names_what_differs(tmp_path, what, values, words):
    """No rank evaluates before all ranks are about to evaluate the same."""
    for end, phases, _ in run(tmp_path, ranks(), **{what: values}):
        assert isinstance(end, EvaluationError)
        assert end.kind == "mismatch"
        assert words in str(end)
        assert phases[-1] == "hello"
        assert sum(map(len, end.sides)) == 3
    assert not (tmp_path / "evaluations").exists()


def test_hello_names_the_layers_that_differ_outside_their_variables(tmp_path):
    """Vocabularies and the like: which parts, and on which nodes."""
    held = [{"vocabulary of a": "1", "bins of b": each, "vocabulary of c": "3"} for each in "223"]
    evaluators = [FakeEvaluator((STREAM,), part, held=own) for part, own in zip(PARTS, held, strict=True)]
    for end, phases, _ in run(tmp_path, evaluators):
        assert end.kind == "mismatch"
        assert end.sides == ((0, 1), (2,))
        assert phases[-1] == "hello"
        words = "outside the model's variables (outside): bins of b: rank 0 on node-0, rank 1 on node-1 against rank 2"
        assert words in str(end)


def test_hello_tells_what_differs_in_the_profile(tmp_path):
    """Each entry with its values and the nodes that have them; the rest is not told."""
    usual = {"device": "1 x NVIDIA H200", "framework": "tensorflow 2.21.0", "threads": "2"}
    profiles = [usual, usual | {"device": "CPU"}, usual | {"threads": "4"}]
    for end, _, _ in run(tmp_path, ranks(), profile=profiles):
        assert end.kind == "mismatch"
        assert end.sides == ((0,), (1,), (2,))
        assert str(end).partition("(profile): ")[2] == (
            "device is '1 x NVIDIA H200' for rank 0 on node-0, rank 2 on node-2 against 'CPU' for rank 1 on node-1; "
            "threads is '2' for rank 0 on node-0, rank 1 on node-1 against '4' for rank 2 on node-2"
        )
    endless = [{"isa": "x" * 5000}, {"isa": "x" * 5000}, {"isa": "x" * 5000 + "y"}]
    error = run(tmp_path, ranks(), profile=endless)[0][0]
    assert str(error).endswith("(profile): rank 0 on node-0, rank 1 on node-1 against rank 2 on node-2")
    assert as_failed(error, phase="hello", plan=1, rank=0).sides == ((0, 1), (2,))


def test_hello_compares_values_and_data(tmp_path):
    """Other values restored from the same checkpoint; another stream of data; other sets."""
    evaluators = ranks()
    evaluators[2].variables = "others"
    assert "restored different values from the same checkpoint (variables)" in str(run(tmp_path, evaluators)[0][0])
    for changed in (replace(STREAM, fingerprint="xyz"), replace(STREAM, examples=6), replace(STREAM, batches=4)):
        evaluators = ranks()
        evaluators[1].streams = (changed,)
        error = run(tmp_path, evaluators)[2][0]
        assert error.kind == "stream_differs"
        assert "eval set 'test': ranks read different data: rank 0 on node-0, rank 2 on node-2 against rank 1" in str(
            error
        )
    evaluators = ranks()
    evaluators[1].streams = (replace(STREAM, eval_set="other"),)
    assert "have different eval sets (eval sets)" in str(run(tmp_path, evaluators)[0][0])


@pytest.mark.parametrize("new", [[True] * 3, [False, False, True]])
def test_ranks_compare_what_their_models_compute(tmp_path, new):
    """Rounding is allowed, and a rank that was built later makes all of them compare again."""
    near = ((1.0, 2.0, 3.0), (1.0, 2.0 + 1e-6, 3.0), (1.0, 2.0, 3.0))
    made = [
        FakeEvaluator((STREAM,), numbers, outputs_are_new=is_new, predicted=predicted)
        for numbers, is_new, predicted in zip(PARTS, new, near, strict=True)
    ]
    assert all(isinstance(end, Done) for end, *_ in run(tmp_path / "a", made))
    assert not any(each.outputs_are_new for each in made)
    for evaluator, is_new in zip(made, new, strict=True):
        evaluator.outputs_are_new = is_new
    made[1].predicted = (1.0, 2.5, 3.0)
    for end, *_ in run(tmp_path / "b", made):
        assert (end.kind, end.sides) == ("mismatch", ((0, 2), (1,)))
        assert "rank 0 on node-0, rank 2 on node-2 against rank 1 on node-1" in str(end)
        assert "without a seed" in str(end)
        assert "tempfile.TemporaryDirectory()" in str(end)
    assert [each.outputs_are_new for each in made] == new
