"""Find the training step in the name of a checkpoint, if its files hold no step and the user set no pattern.

People choose names freely: `ckpt-500`, `epoch_3`, `{epoch:02d}-{val_loss:.2f}`, but also `resnet-50`, `2026-11-22` and
`lr-1e-05`. The words around a number decide whether it may be the step. In names of one shape, a number that is the
same in all of them is not the step, and a number that differs may be. Pure; names are untrusted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final


class _Kind(IntEnum):
    """Rank the kinds of numbers by how likely they are the step; the least is the likeliest."""

    STEP = 0
    EPOCH = 1
    CHECKPOINT = 2
    WEIGHTS = 3
    PADDED = 4  # `mnist.03`
    PLAIN = 5
    OTHER = 6  # the number of a model, a data set or a setting, or written together with a word


_WORDS: Final = {
    _Kind.STEP: "step steps globalstep it iter iters iteration iterations update updates",
    _Kind.EPOCH: "e ep epoch epochs round rounds",
    _Kind.CHECKPOINT: "checkpoint checkpoints chk chkpt chpt ckp ckpt cp cpt save saved snapshot",
    _Kind.WEIGHTS: "model models variables weight weights",
    _Kind.OTHER: (
        # models and data sets, which have numbers of their own
        "albert alexnet bert bloom cifar clip convnext deberta deit densenet detr distilbert efficientnet electra "
        "falcon gemma gpt imagenet inception llama mistral mixer mixtral mobilebert mobilenet mobilevit mpt nasnet "
        "opt phi pythia qwen regnet resnet resnext roberta sam shufflenet squeezenet ssd swin t unet vgg vit vitdet "
        "voc wavenet whisper wideresnet wmt wrn xception yolo "
        # settings
        "batch beta bs dim exp experiment fold gpu heads hidden layers lr node rank run seed size split trial version"
    ),
}
_KINDS: Final = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_BEHIND: Final = {"steps": _Kind.STEP, "iters": _Kind.STEP, "iterations": _Kind.STEP, "epochs": _Kind.EPOCH}
_SIZES: Final = frozenset(
    """
    b base cased g giant h huge l large m medium micro mini n nano patch pico s small t tiny uncased v wide x xl xxl
    """.split()  # noqa: SIM905 - words are read
)
"""Words between a model's name and its number: `vit-b-16`."""

_SURE: Final = _Kind.CHECKPOINT  # a number of this kind or a better one is the step, whether it differs or not
_MOST_DIGITS: Final = 15
_SECONDS_DIGITS: Final = (10, 13)  # digits of seconds and milliseconds since 1970, which begin with 1

_TOKEN: Final = re.compile(
    r"""
    (?P<date>(?<![0-9])(?:19|20)[0-9]{2}(?P<sep>[-_.]?)(?:0[1-9]|1[0-2])(?P=sep)(?:0[1-9]|[12][0-9]|3[01])(?![0-9])
      (?:[-_T ]+(?:[0-9]{2}[-_.:h][0-9]{2}(?:[-_.:m][0-9]{2})?|[0-9]{6})(?![0-9]))?)
    |(?P<real>[0-9]+(?:\.[0-9]+)?[eE][-+]?[0-9]+(?![0-9a-zA-Z])|[0-9]+\.[0-9]+(?!\.?[0-9]))
    |(?P<integer>[0-9]+)
    |(?P<word>[^\W\d_]+)
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_LAST_PART: Final = re.compile(r"(?:[A-Z]?[a-z]+|[A-Z]+)\Z")  # of `modelEpoch`


@dataclass(frozen=True, slots=True)
class _Number:
    """Hold a whole number in a name."""

    value: int
    kind: _Kind


@dataclass(slots=True)
class _Shape:
    """Summarise the names that differ in their numbers only."""

    first: str
    values: tuple[int, ...]  # the numbers of the first name
    differing: set[int] = field(default_factory=set)  # places of numbers that are not the same in all names
    several: bool = False  # whether there is more than one such name


class NamedSteps:
    """Find the steps in the names of one directory by comparing them with one another. No name is ever forgotten."""

    def __init__(self) -> None:
        self._shapes: dict[str, _Shape] = {}

    def add(self, stem: str) -> None:
        """Add the name of a checkpoint, without its format's suffix, to the names to compare with."""
        text, numbers = _parsed(stem)
        values = tuple(number.value for number in numbers)
        shape = self._shapes.setdefault(text, _Shape(stem, values))
        shape.several = shape.several or stem != shape.first
        shape.differing |= {place for place, value in enumerate(values) if value != shape.values[place]}

    def step(self, stem: str) -> int | None:
        """Return the step in the name of a checkpoint, without its format's suffix; None if there is no step."""
        text, numbers = _parsed(stem)
        shape = self._shapes.get(text)
        if shape is None or not shape.several:
            return _step_without_comparison(numbers)
        return _step_by_comparison(numbers, shape)


def step_in_name(stem: str) -> int | None:
    """Return the step in a name without comparing it with other names; None if there is no step."""
    return _step_without_comparison(_parsed(stem)[1])


def _step_without_comparison(numbers: Sequence[_Number]) -> int | None:
    """Return the likeliest step among the numbers of one name; None if no number is likely, or several are."""
    best = min((number.kind for number in numbers), default=_Kind.OTHER)
    values = [number.value for number in numbers if number.kind is best]
    if best is _Kind.OTHER or (len(set(values)) > 1 and best >= _Kind.PADDED):
        return None  # in `12-75` only a comparison with other names shows which number counts
    return values[0]


def _step_by_comparison(numbers: Sequence[_Number], shape: _Shape) -> int | None:
    """Return the likeliest step among the numbers that are sure, or that differ between names of one shape."""
    among = [
        (number.kind, place, number.value)
        for place, number in enumerate(numbers)
        if number.kind <= _SURE or place in shape.differing
    ]
    return min(among)[2] if among else None


def _parsed(stem: str) -> tuple[str, list[_Number]]:
    """Return the shape of a name, and its whole numbers in order."""
    tokens = [(str(match.lastgroup), match[0]) for match in _TOKEN.finditer(stem)]
    shape, numbers = list[str](), list[_Number]()
    in_model_name = False  # whether the last words are a model's name, followed only by its sizes and numbers
    for at, (group, text) in enumerate(tokens):
        kind = _kind(tokens, at, in_model_name=in_model_name) if group == "integer" else None
        if kind is not None:
            numbers.append(_Number(int(text), kind))
        if group == "word":
            in_model_name = _KINDS.get(text.lower()) is _Kind.OTHER or (in_model_name and text.lower() in _SIZES)
        elif text == "/":
            in_model_name = False  # the name of a folder does not describe the names in it
        shape.append("#" if kind is not None else "@" if group in ("date", "real", "integer") else text)
    return "".join(shape), numbers


def _kind(tokens: Sequence[tuple[str, str]], at: int, *, in_model_name: bool) -> _Kind | None:
    """Return the kind of the whole number at the place `at`; None if it is a time, or too long for a step."""
    digits = tokens[at][1]
    before, is_attached = _word(tokens, at, -1)
    behind, is_followed = _word(tokens, at, 1)
    kind = _KINDS.get(before, _KINDS.get(_last_part(before))) if before else None
    if behind.lower() in _BEHIND and (is_followed or kind is None):
        kind = _BEHIND[behind.lower()]
    elif is_followed:
        kind = _Kind.OTHER
    elif kind is None or kind > _SURE:
        kind = _unsure(digits, kind, is_attached=is_attached, in_model_name=in_model_name)
    is_time = kind > _SURE and len(digits) in _SECONDS_DIGITS and digits.startswith("1")
    return None if is_time or len(digits) > _MOST_DIGITS else kind


def _unsure(digits: str, kind: _Kind | None, *, is_attached: bool, in_model_name: bool) -> _Kind:
    """Return the kind of a number whose preceding word is unknown, or does not only precede steps."""
    if kind is _Kind.WEIGHTS:
        return kind
    if is_attached:
        return _Kind.OTHER
    if digits.startswith("0") and len(digits) > 1:
        return _Kind.PADDED
    return _Kind.OTHER if in_model_name or kind is _Kind.OTHER else _Kind.PLAIN


def _word(tokens: Sequence[tuple[str, str]], at: int, step: int) -> tuple[str, bool]:
    """Return the word before (`step` -1) or after (1) a number, and whether nothing separates them; "" if no word."""
    place = at + step
    while 0 <= place < len(tokens) and tokens[place][0] == "other":
        place += step
    if not 0 <= place < len(tokens) or tokens[place][0] != "word":
        return "", False
    return tokens[place][1], place == at + step


def _last_part(word: str) -> str:
    """Return the last part of a word in camel case, in lower case: `epoch` of `modelEpoch`."""
    match = _LAST_PART.search(word)
    return (match[0] if match else word).lower()
