"""How often the early stop ends a training run that would have gone on to improve."""

import statistics

from table import Figure, Table
from training_curves import CHECKPOINTS, REST_IS_TWO_POINTS, curves, stop_of

HOW = """Simulated runs of 60 checkpoints, from an accuracy of 0.85 on 1,000 examples. *flat* does not improve; *slow*
improves by 0.002 per checkpoint, up to 0.95; *knee* improves by 0.01, and is flat from the tenth checkpoint on. Each
checkpoint answers all examples anew, or only 30 % of them, which makes the noise of neighbours alike. *patience alone*
ends a run after that many evaluations without a larger number; *levelled off* is the rule of the early stop. *lost* is
the share of slow runs that end with more than 2 of their 10 points to come; the other columns are the mean number of
evaluations until a run ends. Seeds are fixed."""
COLUMNS = ("answers drawn anew", "patience", "rule", "flat: evaluations", "slow: lost", "knee: evaluations")
RULES = {"patience alone": lambda *_: True, "levelled off": None}


def measure(quick):
    rows, found = [], {}
    for redrawn in (1.0, 0.3):
        runs = {
            shape: list(curves(shape, 50 if quick else 1000, seed=seed, redrawn=redrawn))
            for seed, shape in enumerate(("flat", "rises", "rises, then flat"))
        }
        for patience in (3, 5, 10):
            for rule, levels_off in RULES.items():
                more = {} if levels_off is None else {"levels_off": levels_off}
                stops = {
                    shape: [stop_of(numbers, patience, **more) or CHECKPOINTS + 1 for numbers in each]
                    for shape, each in runs.items()
                }
                lost = statistics.mean(stop < REST_IS_TWO_POINTS for stop in stops["rises"])
                flat, knee = (statistics.mean(stops[shape]) for shape in ("flat", "rises, then flat"))
                found[redrawn, patience, rule] = flat, lost
                rows.append((f"{redrawn:.0%}", patience, rule, flat, f"{lost:.1%}", knee))
    (before, _), (flat, lost) = (found[1.0, 5, rule] for rule in RULES)
    figures = [
        Figure("slow runs lost with patience 3", 100 * found[1.0, 3, "levelled off"][1], 10, unit=" %"),
        Figure("slow runs lost with patience 5", 100 * lost, 10, unit=" %"),
        Figure("evaluations of a flat run with patience 5, over those of patience alone", flat / before, 1.5),
    ]
    return Table("Early stop: slow improvement and plateau", HOW, COLUMNS, rows, figures)
