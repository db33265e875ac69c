"""Find the places of a history where numbers stop being comparable, for all that show it. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sidecar.coordination.comparability import Stretches
from sidecar.coordination.journal_state import Closed, Entry

CANNOT: Final = "numbers above and below cannot be compared"


def breaks(entries: Iterable[Entry]) -> dict[int, Mapping[str, str]]:
    """Return, by plan and eval set, why numbers from there on cannot be compared with those before, as a clause.

    Plans without such a place are left out. `entries` are in the order of the journal, and may be a part of it.
    """
    return {closed.plan.plan: broken for closed, broken in with_breaks(entries) if broken}


def with_breaks(entries: Iterable[Entry]) -> Iterator[tuple[Closed, Mapping[str, str]]]:
    """Yield each evaluation, with what `breaks` says about its plan."""
    stretches = Stretches()
    for entry in entries:
        if isinstance(entry, Closed) and entry.outcome.result is not None:
            yield entry, stretches.add(entry.outcome.result)


def stretch_numbers(entries: Iterable[Entry]) -> dict[tuple[int, str], int]:
    """Return the number of the stretch, from 0, of each plan and eval set: within one, numbers can be compared."""
    entries = list(entries)
    broken, numbers, found = breaks(entries), dict[str, int](), dict[tuple[int, str], int]()
    for entry in entries:
        if isinstance(entry, Closed) and entry.outcome.result is not None:
            plan = entry.plan.plan
            for eval_set in entry.outcome.result.examples:
                numbers[eval_set] = numbers.get(eval_set, 0) + (eval_set in broken.get(plan, {}))
                found[plan, eval_set] = numbers[eval_set]
    return found


def mark(broken: Mapping[str, str]) -> str:
    """Return one sentence about a place: `the data of 'test' changed: numbers above and below cannot be compared`."""
    return f"{'; '.join(dict.fromkeys(broken.values()))}: {CANNOT}"
