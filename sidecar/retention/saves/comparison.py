"""Compare two evaluations of one metric: is the newer one better by more than noise? Pure.

Numbers are only compared if `coordination.comparability` permits it: the code of the task, the data and the number of
examples are equal. Else the newer evaluation is not better (rule `none`). There are three rules to compare by, and the
first one that applies is used:

- `paired`: both evaluations saved a value of the metric for each example of the same data. The interval is that of the
  mean difference of the pairs, so noise that both evaluations share does not count.
- `intervals`: both numbers have a 95 % interval. The interval of the difference is made from the two intervals, as if
  the evaluations were independent. On the same data they usually agree on most examples, so this rule rather misses an
  improvement than finds one that is none.
- `value`: the noise is unknown, and the better number is better.

Each evaluation after the best one is one more look, and a look at the usual 95 % errs once in 40 times. So the interval
is the longer the more looks there were: `confidence_after` gives its confidence.

`saves.comparison_store` reads the values of examples, and decides once for all nodes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Final

from sidecar.coordination.totals import has_direction, number_of
from sidecar.evaluation.intervals import FEWEST, Z, clustered, normal
from sidecar.protocol.records import SCHEMA, Result, Value
from sidecar.system.plain_text import one_line

RULES: Final = ("paired", "intervals", "value")

NOT_COMPARABLE: Final = "none"
"""The rule of two evaluations that cannot be compared."""

CONFIDENCE: Final = 0.95
"""The confidence of an interval that is looked at once."""

_HALF: Final = 50
"""The number of looks that share half of all errors."""

_ERRORS: Final = 0.14
"""The sum of the errors of all looks, as if no two could err together."""


def confidence_after(looks: int) -> float:
    """Return the confidence of the interval at a look, by its number from 1, at evaluations after the best one.

    Look k calls an evaluation better that is not with a probability of 7 / ((k + 49) (k + 50)), which is half of what
    the interval misses (alpha spending: K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for clinical
    trials", Biometrika 70 (1983) 659-663). All looks compare with the same best evaluation and share its noise. So at
    least one of them errs with a probability of 4.9 %, in a run of any length whose checkpoints are equally good: that
    is the probability that many treatments, compared with one control, exceed these limits (C. W. Dunnett, "A multiple
    comparison procedure for comparing several treatments with a control", JASA 50 (1955) 1096-1121).
    """
    looks = max(looks, 1)
    return 1 - 2 * _ERRORS * _HALF / ((looks + _HALF - 1) * (looks + _HALF))


_ROUNDING: Final = 1e-6
"""The largest difference between a published number and the mean of saved values, relative to the number.

It is never absolute: for a mean squared error of 1e-7, a difference of 1e-6 is everything."""

_MOST_CHARACTERS: Final = 300  # of a note: other users may be able to write it


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Compare the evaluation of plan `new` with that of the earlier plan `old`."""

    run: str
    metric: str  # EVAL_SET/METRIC
    new: int  # number of the newer plan
    old: int  # number of the older plan
    rule: str  # `paired`, `intervals`, `value` or `none`
    # Whether the newer evaluation is better by more than noise; with the rule `value`, whether it is better
    better: bool
    difference: float | None = None  # the newer number minus the older one; None if it is not finite
    confidence: float = CONFIDENCE  # of the interval of the difference: larger after more looks
    lower: float | None = None  # lower end of that interval; None with the rule `value`
    upper: float | None = None  # upper end of that interval
    examples: int | None = None  # number of pairs, with the rule `paired`
    note: str = ""  # why the evaluations cannot be compared, or are not compared example by example; empty if they are
    schema: int = SCHEMA

    def describe(self) -> str:
        """Return the comparison as a part of a sentence: `by 0.012 (95 % 0.003 to 0.021, paired)`."""
        if self.rule == NOT_COMPARABLE:
            return f"(cannot be compared: {one_line(self.note)[:_MOST_CHARACTERS]})"
        return self._difference() + (f"; not paired: {one_line(self.note)[:_MOST_CHARACTERS]}" if self.note else "")

    def _difference(self) -> str:
        by = "" if self.difference is None else f"by {abs(self.difference):.4g} "
        if self.lower is None or self.upper is None:
            return f"{by}(noise unknown)"
        ends = sorted((abs(self.lower), abs(self.upper))) if self.lower * self.upper > 0 else (self.lower, self.upper)
        return f"{by}({_percent(self.confidence)} {ends[0]:.4g} to {ends[1]:.4g}, {self.rule})"


def _percent(confidence: float) -> str:
    """Return a confidence as text, rounded down: `95 %`, `99.09 %`."""
    return f"{math.floor(confidence * 1e4) / 100:g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Hold the difference of two numbers with its interval, None if it is unknown, and how it was found."""

    rule: str
    number: float | None
    confidence: float = CONFIDENCE
    lower: float | None = None
    upper: float | None = None
    examples: int | None = None
    note: str = ""

    def is_better(self, goal: str) -> bool:
        """Return whether the newer number is better, by more than noise if the noise is known."""
        ends = (self.number, self.number) if self.lower is None else (self.lower, self.upper)
        lower, upper = (math.nan if end is None else end for end in ends)
        return lower > 0 if goal == "max" else upper < 0


@dataclass(slots=True, kw_only=True)
class Pairs:
    """Add up the differences of paired values. `larger`, `smaller`: how often the newer value was that."""

    count: int = 0
    totals: list[float] = field(default_factory=list)  # of each part
    squares: list[float] = field(default_factory=list)
    cubes: list[float] = field(default_factory=list)
    larger: int = 0
    smaller: int = 0
    binary: bool = True  # all values were 0 or 1
    # By the number of a group: the total of its differences, and the number of its pairs. Empty: pairs are independent
    groups: dict[float, tuple[float, int]] = field(default_factory=dict)

    def add(self, new: Iterable[float], old: Iterable[float], groups: Iterable[float] = ()) -> None:
        """Add the values of the same examples, which must be finite, with their groups if they have some."""
        differences = []
        for after, before in zip(new, old, strict=True):
            self.binary &= after in (0.0, 1.0) and before in (0.0, 1.0)
            self.larger += after > before
            self.smaller += after < before
            differences.append(after - before)
        self.count += len(differences)
        for group, difference in zip(groups, differences, strict=False):
            total, count = self.groups.get(group, (0.0, 0))
            self.groups[group] = total + difference, count + 1
        self.totals.append(math.fsum(differences))
        self.squares.append(math.fsum(difference * difference for difference in differences))
        self.cubes.append(math.fsum(difference**3 for difference in differences))

    def difference(self, confidence: float = CONFIDENCE) -> Difference | None:
        """Return the mean difference with its interval; None for fewer than two pairs.

        Values of 0 and 1, as of an accuracy: the interval of A. Agresti and Y. Min, "Simple improved confidence
        intervals for comparing matched proportions", Statistics in Medicine 24 (2005) 729-740. It adds half a pair to
        each of the four cells, because the plain interval is too short if few examples differ. Other values: the
        interval of the mean of the differences, which may be skewed: see `intervals.normal`. Pairs in groups: that of
        `intervals.clustered`, without an interval for fewer than 20 groups.
        """
        if self.count < 2:  # noqa: PLR2004 - the variance of one value is unknown
            return None
        total, share = math.fsum(self.totals), (1 + confidence) / 2
        if self.groups:
            enough = len(self.groups) >= FEWEST
            parts = zip(*self.groups.values(), strict=True) if enough else ((), ())
            interval = clustered(*parts, probability=share)
        elif self.binary:
            count = self.count + 2
            middle = (self.larger - self.smaller) / count
            variance = (self.larger + self.smaller + 1) / count - middle**2
            half = NormalDist().inv_cdf(share) * math.sqrt(variance / count)
            interval = middle - half, middle + half
        else:
            interval = normal(total, math.fsum(self.squares), self.count, math.fsum(self.cubes), probability=share)
        return Difference(
            rule="paired",
            number=total / self.count,
            confidence=confidence,
            lower=interval[0],
            upper=interval[1],
            examples=self.count,
        )


def is_rounded(number: float, published: float, size: float) -> bool:
    """Return whether a number is a published one except for rounding. `size`: the largest number that was rounded."""
    return abs(number - published) <= _ROUNDING * abs(size)


def published(paired: Difference, expected: Difference, size: float) -> Difference | None:
    """Return the difference of pairs as that of the published numbers, around which its interval is moved.

    None if they differ by more than rounding: then the pairs are not those of the published numbers. `expected`: the
    difference of the published numbers. `size`: the larger one of them.
    """
    if paired.number is None or expected.number is None or not is_rounded(paired.number, expected.number, size):
        return None
    if paired.lower is None or paired.upper is None:
        return None
    shift = expected.number - paired.number
    return replace(paired, number=expected.number, lower=paired.lower + shift, upper=paired.upper + shift)


def compare_values(new: Value, old: Value, confidence: float = CONFIDENCE) -> Difference:
    """Return the difference of two numbers by their 95 % intervals, as that of two independent estimates.

    The rule is MOVER, the method of variance estimates recovery, of G. Y. Zou and A. Donner, "Construction of
    confidence limits about effect measures: a general approach", Statistics in Medicine 27 (2008) 1693-1702. It
    recovers the variance of each estimate from the end of its own interval that matters, so it holds for intervals that
    are not symmetric, such as Wilson's; for two proportions it is method 10 of R. G. Newcombe (1998). A larger
    confidence makes it longer, as it would that of a normal distribution. Without both intervals the rule is `value`.
    """
    after, before = number_of(new), number_of(old)
    if not (math.isfinite(after) and math.isfinite(before)):
        return Difference(rule="value", number=_infinite(after, before), confidence=confidence)
    number = after - before
    if new.lower is None or new.upper is None or old.lower is None or old.upper is None:
        return Difference(rule="value", number=number, confidence=confidence)
    longer = NormalDist().inv_cdf((1 + confidence) / 2) / Z
    lower = number - longer * math.hypot(after - new.lower, old.upper - before)
    upper = number + longer * math.hypot(new.upper - after, before - old.lower)
    if not (math.isfinite(lower) and math.isfinite(upper)):
        return Difference(rule="value", number=number, confidence=confidence)
    return Difference(rule="intervals", number=number, confidence=confidence, lower=lower, upper=upper)


def _infinite(after: float, before: float) -> float | None:
    """Return the difference of numbers of which one is not finite: only its sign is known; None if not even that is."""
    if math.isnan(after) or math.isnan(before) or after == before:
        return None
    return math.inf if after > before else -math.inf


def comparison(run: str, metric: str, new: tuple[int, Value], old: tuple[int, Value], found: Difference) -> Comparison:
    """Return the record of a difference that was found. `new`, `old`: the numbers of the plans, and their values."""
    goal = new[1].goal
    finite = found.number is not None and math.isfinite(found.number)
    return Comparison(
        run=run,
        metric=metric,
        new=new[0],
        old=old[0],
        rule=found.rule,
        better=(
            found.rule != NOT_COMPARABLE and has_direction(new[1]) and goal == old[1].goal and found.is_better(goal)
        ),
        difference=found.number if finite else None,
        confidence=found.confidence,
        lower=found.lower,
        upper=found.upper,
        examples=found.examples,
        note=found.note,
    )


def value_of(result: Result | None, metric: str) -> Value | None:
    """Return the number of EVAL_SET/METRIC in a result; None if it was not measured."""
    for eval_set, metrics in ({} if result is None else result.metrics).items():
        for name, value in metrics.items():
            if f"{eval_set}/{name}" == metric:
                return value
    return None


def size_of(new: Value, old: Value) -> float:
    """Return the larger one of two numbers without its sign, by which rounding is measured; 0 if one is not finite."""
    numbers = [abs(number_of(value)) for value in (new, old)]
    return max(numbers) if all(map(math.isfinite, numbers)) else 0.0


def contradiction(record: Comparison, expected: Comparison, goal: str, size: float) -> str | None:
    """Return what is wrong with a recorded comparison that another user may have written; None if it may be true.

    `expected`: the comparison by the published numbers alone. A record can differ from it only by the rule `paired`,
    whose mean difference is the difference of the published numbers. `size`: see `size_of`.
    """
    if record.rule != "paired" or expected.rule == NOT_COMPARABLE:
        same = replace(record, note="") == replace(expected, note="")
        return None if same else "it does not follow from the published numbers"
    if replace(expected, rule="", better=False, difference=None, lower=None, upper=None, note="") != replace(
        record, rule="", better=False, difference=None, lower=None, upper=None, examples=None, note=""
    ):
        return "it is about other evaluations"
    found = Difference(rule=record.rule, number=record.difference, lower=record.lower, upper=record.upper)
    if found.number is None or found.lower is None or found.upper is None or expected.difference is None:
        return "it has no difference"
    if not is_rounded(found.number, expected.difference, size):
        return f"its difference is {found.number!r}, and that of the published numbers is {expected.difference!r}"
    follows = found.lower <= found.upper and record.better == found.is_better(goal)
    return None if follows else "its verdict does not follow from its interval"
