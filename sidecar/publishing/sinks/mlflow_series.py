"""Name the series of an evaluation as MLflow permits it. Pure.

MLflow permits letters, digits, `_`, `-`, `.`, blanks and `/` in at most 250 characters, and a name has to be a path in
normal form (mlflow/utils/validation.py). It permits `:` as well in newer versions only.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from sidecar.coordination.totals import number_of
from sidecar.protocol.records import Result

_MOST_CHARACTERS: Final = 100  # of an eval set and of a metric: both, and the bound behind them, fit in 250
_NOT_PERMITTED: Final = re.compile(r"[^\w.\- ]")
_MARK_CHARACTERS: Final = 8


def series(result: Result) -> dict[str, float]:
    """Return the numbers of an evaluation by name: `EVAL_SET/METRIC`, its bounds, and `EVAL_SET/examples`.

    The bounds are `EVAL_SET/METRIC_lower` and `_upper`: a server that stores files cannot have both `a/b` and `a/b/c`.
    A metric that has the name of a bound or of the examples takes their place.
    """
    numbers, others = dict[str, float](), dict[str, float]()
    for eval_set, metrics in result.metrics.items():
        for metric, value in metrics.items():
            name = f"{_part(eval_set)}/{_path(metric)}"
            numbers[name] = number_of(value)
            for bound, number in (("lower", value.lower), ("upper", value.upper)):
                if number is not None:
                    others[f"{name}_{bound}"] = number
    for eval_set, examples in result.counted().items():
        others[f"{_part(eval_set)}/examples"] = float(examples)
    return {**others, **numbers}


def _path(name: str) -> str:
    """Return a name in which `/` may stand, as metrics of several classes have it."""
    parts = name.split("/")
    legal = "/".join("_" if part in ("", ".", "..") else _NOT_PERMITTED.sub("_", part) for part in parts)
    return _marked(legal, name)


def _part(name: str) -> str:
    """Return a name without `/`: the eval set `a/b` with the metric `c` is not `a` with `b/c`."""
    legal = _NOT_PERMITTED.sub("_", name)
    if legal in ("", ".") or legal.startswith(".."):  # MLflow takes any name that begins with .. for a way out
        legal = f"_{legal[1:]}"
    return _marked(legal, name)


def _marked(legal: str, name: str) -> str:
    """Return the legal name; if it differs from the name, it ends with a hash, so that no two names become one."""
    if legal == name and len(legal) <= _MOST_CHARACTERS:
        return legal
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_MARK_CHARACTERS]
    return f"{legal[: _MOST_CHARACTERS - _MARK_CHARACTERS - 1].rstrip('/')}-{mark}"


def points(numbers: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the numbers with all bits, in a form that JSON can carry, NaN and infinity included."""
    return [(name, number.hex()) for name, number in numbers.items()]
