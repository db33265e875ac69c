"""Compare exact areas under curves with those of scikit-learn."""

import math

import numpy as np
import pytest
from evaluation.metrics.areas import areas
from sklearn.metrics import average_precision_score

from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import student_t
from sidecar.metrics import AUC, BinnedAUC, EvalBatch, EvalSetInfo


def test_exact_auc_needs_the_number_of_examples():
    """Where it is not known, or too large for the memory, the binned one is named."""
    with pytest.raises(TaskError, match=r"'auc'.*number of examples.*BinnedAUC"):
        AUC().states(EvalSetInfo(None, Shard(0, 1)))
    with pytest.raises(TaskError, match=r"'auc'.*10000001.*160 MB.*BinnedAUC"):
        AUC().states(EvalSetInfo(10_000_001, Shard(0, 1)))
    assert AUC(max_examples=10).states(EvalSetInfo(10, Shard(0, 1)))
    with pytest.raises(TaskError, match="max_examples"):
        AUC(max_examples=10).states(EvalSetInfo(11, Shard(0, 1)))
    assert BinnedAUC().states(EvalSetInfo(None, Shard(0, 1)))


def test_goals_and_intervals(odd, measure):
    """More is better, and all have an interval."""
    y, p, _ = odd
    found = {**measure(AUC(name="odd"), y, p).values, **measure(BinnedAUC(), y, p, known=False).values}
    assert list(found) == ["roc_odd", "pr_odd", "roc_binned_auc", "pr_binned_auc"]
    assert {each.goal for each in found.values()} == {"max"}
    assert all(each.lower < each.value < each.upper for each in found.values())


def delong(y, scores):
    """The standard error as the article defines it, pair by pair."""
    wins = (scores[y == 1][:, None] > scores[y == 0]) + 0.5 * (scores[y == 1][:, None] == scores[y == 0])
    of_positives, of_negatives = wins.mean(axis=1), wins.mean(axis=0)
    return math.sqrt(of_positives.var(ddof=1) / len(of_positives) + of_negatives.var(ddof=1) / len(of_negatives))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_interval_is_delongs(odd, measure, ranks):
    """On the scale of the logit; scores have ties."""
    y, p, _ = odd
    p = np.round(p, 1)
    found = measure(AUC(), y, p, ranks=ranks).values["roc_auc"]
    t = student_t(min((y == 1).sum(), (y == 0).sum()) - 1)
    half = t * delong(y, p) / (found.value * (1 - found.value))
    wanted = [math.log(found.value / (1 - found.value)) + end for end in (-half, half)]
    assert [math.log(end / (1 - end)) for end in (found.lower, found.upper)] == pytest.approx(wanted, rel=1e-10)
    assert found == measure(AUC(), y, p).values["roc_auc"]


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.drawn(1)
def test_the_interval_of_average_precision_is_that_of_its_derivatives(odd, measure, is_weighted):
    """Which scikit-learn's number has, too, if the weight of one example changes a little."""
    y, p, weights = odd
    p = np.round(p, 1)
    given = weights.astype(np.float64) if is_weighted else np.ones(len(y))
    kept, step = np.flatnonzero(given), 1e-5

    def moved(place, by):
        changed = given.copy()
        changed[place] += by
        return average_precision_score(y, p, sample_weight=changed)

    slopes = [(moved(place, step) - moved(place, -step)) / (2 * step) * given[place] for place in kept]
    found = measure(AUC(), y, p, weights if is_weighted else None, ranks=3).values["pr_auc"]
    count = len(kept)
    error = math.sqrt(np.square(slopes).sum() * count / (count - 1))
    fewest = min((y[kept] == 1).sum(), (y[kept] == 0).sum())
    half = student_t(fewest - 1) * error / (found.value * (1 - found.value))
    odds = math.log(found.value / (1 - found.value))
    ends = [math.log(end / (1 - end)) for end in (found.lower, found.upper)]
    assert ends == pytest.approx([odds - half, odds + half], rel=1e-6)


def test_the_interval_of_bins_is_that_of_rounded_scores(odd, measure):
    """For independent examples without weights only."""
    y, p, weights = odd
    rounded = measure(AUC(), y, np.minimum(np.floor(p * 10), 9)).values
    for ranks in (1, 2, 3):
        found = measure(BinnedAUC(bins=10), y, p, ranks=ranks).values
        for name, of_bins in (("roc_auc", "roc_binned_auc"), ("pr_auc", "pr_binned_auc")):
            ends = [(each.value, each.lower, each.upper) for each in (rounded[name], found[of_bins])]
            assert ends[1] == pytest.approx(ends[0], rel=1e-12)
    four = y[:396].reshape(-1, 4), p[:396].reshape(-1, 4)
    others = (
        measure(BinnedAUC(), y, p, weights),
        measure(BinnedAUC(), *four),
        measure(BinnedAUC(), y, p, groups=np.arange(len(y)) // 2),
    )
    assert {number.lower for each in others for number in each.values.values()} == {None}


def test_examples_that_are_repeated_say_nothing_new(odd, measure):
    """As groups they have the interval of one copy; without groups a shorter one."""
    y, p, _ = odd
    once = measure(AUC(), y, p, groups=np.arange(len(y))).values
    copies = np.repeat(y, 3), np.repeat(p, 3)
    thrice = measure(AUC(), *copies, groups=np.arange(3 * len(y)) // 3).values
    for name, alone in measure(AUC(), *copies).values.items():
        assert (thrice[name].lower, thrice[name].upper) == pytest.approx(
            (once[name].lower, once[name].upper), rel=1e-10
        )
        assert alone.lower > once[name].lower


@pytest.mark.parametrize(("y", "p"), [([0, 1], [0.1, 0.2]), ([0, 0, 1], [0.1, 0.3, 0.2]), ([1, 1], [0.1, 0.2])])
def test_no_interval_is_known_of_so_few(measure, y, p):
    """Nor of a perfect ranking."""
    assert {each.lower for each in measure(AUC(), y, p).values.values()} == {None}


@pytest.mark.parametrize("of_class", [0, 1])
@pytest.mark.parametrize("way", ["alone", "binned", "weights", "groups"])
def test_19_examples_of_a_class_have_no_interval(measure, of_class, way):
    """Nor 19 groups that have some: at 10 of each, 99 % of the intervals contained the truth."""
    for fewest, is_known in ((19, False), (20, True)):
        y = np.where(np.arange(100) % 100 < fewest, of_class, 1 - of_class)
        p = np.random.default_rng(3).random(100) * 0.7 + 0.3 * y
        metric, more = BinnedAUC() if way == "binned" else AUC(), {}
        if way == "groups":
            y, p, more = np.repeat(y, 2), np.repeat(p, 2), {"groups": np.arange(200) // 2}
        found = measure(metric, y, p, np.full(100, 0.5, np.float32) if way == "weights" else None, **more)
        assert {each.lower is not None for each in found.values.values()} == {is_known}


@pytest.mark.parametrize("kind", [AUC, BinnedAUC])
def test_mistakes_are_told_in_one_sentence(both, kind):
    """What, which metric, what was found, what to do."""
    for metric, y, predictions, told in (
        (kind(), [0, 1], np.eye(2), r"\(2, 2\).*positive=…"),
        (kind(), [0, 2], [0.5, 0.5], "binary labels .*found 2"),
        (kind(), [0, 1, 1], [0.5, 0.5], r"\(3,\).*\(2,\).*same shape"),
        (kind(2), [0, 1], np.eye(2), r"positive=2\b.*\b2\b"),
        (kind(1), [0, 2], np.eye(2), r"\bfrom 0 to 1\b.*found 2"),
    ):
        with pytest.raises(TaskError, match=told):
            both(metric, y, predictions)
    for positive in (-1, True, "cat"):
        with pytest.raises(TaskError, match=f"positive={positive!r} .*None"):
            kind(positive)


def test_values_of_examples_stand_at_their_place():
    """Place values in any order of batches."""
    metric = AUC()
    states = metric.states(EvalSetInfo(4, Shard(0, 1)))
    metric.add(states, EvalBatch(np.array([0, 1]), np.array([3.0, 4.0]), np.array([1.0, 0.5]), 2))
    metric.add(states, EvalBatch(np.array([1, 1]), np.array([1.0, 2.0]), np.array([0.0, 2.0]), 0))
    assert states["scores"].values().tolist() == [0, 2, 3, 4]
    assert states["weights"].values().tolist() == [0, 2, -1, 0.5]


def test_binned_auc_is_that_of_rounded_scores(odd, both):
    """Scores in the same bin are ties; a score of 1 is in the last bin."""
    y, p, weights = odd
    p = np.concatenate([[1.0, 0.0], p[2:]])
    for bins in (2, 10, 1000):
        rounded = np.minimum(np.floor(p * bins), bins - 1)
        assert both(BinnedAUC(bins=bins), y, p) == pytest.approx(areas(y, rounded), rel=1e-12)
        assert both(BinnedAUC(bins=bins), y, p, weights) == pytest.approx(areas(y, rounded, weights), rel=1e-12)


def test_binned_auc_errs_by_half_the_ties_at_most(odd, both):
    """The bound that its docstring gives, here for coarse bins."""
    y, p, _ = odd
    for bins in (5, 50):
        bin_of = np.minimum(np.floor(p * bins), bins - 1)
        ties = np.mean(bin_of[y == 1][:, None] == bin_of[y == 0])
        assert abs(both(BinnedAUC(bins=bins), y, p)[0] - areas(y, p)[0]) <= ties / 2


def test_binned_auc_of_logits_takes_their_sigmoid(odd, both):
    """Also of such as overflow."""
    y, p, _ = odd
    logits = np.log(p) - np.log1p(-p)
    binned = np.floor(1 / (1 + np.exp(-logits)) * 100)
    assert both(BinnedAUC(bins=100, from_logits=True), y, logits) == pytest.approx(areas(y, binned), rel=1e-12)
    assert both(BinnedAUC(from_logits=True), [0, 1], [-1e4, 1e4]) == [1, 1]


def test_binned_auc_counts_positions_of_sequences(odd, both):
    """Which an exact one refuses."""
    y, p, _ = odd
    kept = np.arange(396).reshape(-1, 4) % 5 > 0
    binned = np.floor(p[:396] * 1000)[kept.ravel()]
    found = both(BinnedAUC(), y[:396].reshape(-1, 4), p[:396].reshape(-1, 4), kept)
    assert found == pytest.approx(areas(y[:396][kept.ravel()], binned), rel=1e-12)
    with pytest.raises(TaskError, match=r"'auc'.*\(32, 4\).*BinnedAUC"):
        both(AUC(), y[:396].reshape(-1, 4), p[:396].reshape(-1, 4))


def test_scores_outside_the_bins_are_told(both):
    """They are logits, most likely."""
    for wrong in (1.5, -0.25):
        with pytest.raises(TaskError, match=f"scores .*found {wrong}.*from_logits=True"):
            both(BinnedAUC(), [0, 1], [0.5, wrong])
    for bins in (1, 2.0, True):
        with pytest.raises(TaskError, match=rf"BinnedAUC\(bins={bins}\).*from 2\b"):
            BinnedAUC(bins=bins)


NAN = math.nan


def test_exact_auc_is_that_of_scikit_learn(odd, both):
    """Also with many equal scores, also weighted; of float32 scores and of logits."""
    y, p, weights = odd
    for scores in (p, p.round(1), p.astype(np.float32), np.log(p), np.zeros(397), -p):
        assert both(AUC(), y, scores) == pytest.approx(areas(y, scores), rel=1e-12)
        assert both(AUC(), y, scores, weights) == pytest.approx(areas(y, scores, weights), rel=1e-12)


@pytest.mark.parametrize("metric", [AUC(), BinnedAUC()])
def test_what_cannot_be_ranked_is_nan(both, metric):
    """One class only has no ROC; without a positive there is no precision; nothing at all has neither."""
    for arrays, roc, precision in (
        (([1, 1], [0.25, 0.75]), NAN, 1.0),
        (([0, 0], [0.25, 0.75]), NAN, NAN),
        (([0, 1], [0.25, 0.75], [0.0, 1.0]), NAN, 1.0),
        (([0, 1], [0.25, 0.75], [1.0, 0.0]), NAN, NAN),
        (([0, 1], [0.25, 0.75], [0.0, 0.0]), NAN, NAN),
        ((np.zeros(0), np.zeros(0)), NAN, NAN),
        (([0, 1, 1], [0.25, 0.75, NAN]), NAN, NAN),
        (([0, 1, 1], [0.25, 0.75, NAN], [1.0, 1.0, 0.0]), 1.0, 1.0),
        (([False, True], [0.5, 0.5]), 0.5, 0.5),
    ):
        assert both(metric, *arrays) == pytest.approx([roc, precision], nan_ok=True, rel=0, abs=0)


@pytest.mark.parametrize("kind", [AUC, BinnedAUC])
def test_one_class_against_all_others(numerals, both, kind):
    """Take scores for all classes."""
    y, scores = numerals.y == 3, numerals.predictions[:, 3]
    wanted = both(kind(), y, scores)
    assert both(kind(3), numerals.y, numerals.predictions) == wanted
    assert both(kind(), y[:, None].astype(np.float32), scores[:, None]) == wanted


def test_masked_labels_and_scores_may_be_anything(odd, both):
    """Weight 0 is looked at by nobody, whatever stands there."""
    y, p, _ = odd
    kept = np.arange(397) % 3 > 0
    wanted = pytest.approx(areas(y[kept], p[kept]), rel=1e-12)
    assert both(AUC(), np.where(kept, y, -1), np.where(kept, p, 7), kept) == wanted


def test_infinite_and_signed_zero_scores_are_scores(both):
    """Infinities of one sign tie, and so do zeros of both."""
    y, scores = [0, 1, 0, 1, 1], [-math.inf, math.inf, math.inf, 0.0, -1.0]
    assert both(AUC(), y, scores) == pytest.approx(areas(y, np.nan_to_num(scores)), rel=1e-12)
    assert both(AUC(), [0, 1], [0.0, -0.0])[0] == 0.5
