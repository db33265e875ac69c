"""`python -m simulation SEEDS`: runs them, prints a table, and of a violation the shortest history that was found."""

import argparse
import os
import pickle
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from simulation import many
from simulation.generations import draw, names_in
from simulation.shrink import Parts, shrink
from simulation.simulation import Report, simulate

_MOST_SHRUNK = 3
_ROUND = 500
_RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> int:
    """Run what was asked for; 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("seeds", help="1-2000, 4711, 1-100,4711, or 1:4711 for a seed of the first generation")
    parser.add_argument("--faults", type=_numbers, help="only these faults of one seed; - for none")
    parser.add_argument("--nodes", type=_numbers, help="only these nodes of one seed")
    parser.add_argument("--checkpoints", type=_numbers, help="only these checkpoints of one seed")
    parser.add_argument("--history", action="store_true", help="tell what happened even if nothing is wrong")
    parser.add_argument("--write", action="store_true", help=f"write the table to {_RESULTS.name}")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further seeds after so long")
    parser.add_argument("--shard", type=_shard, default=(1, 1), help="2/5: only the second of five parts of the seeds")
    parser.add_argument("--progress", type=Path, help="keep here what rounds came to; started again, go on behind them")
    options = parser.parse_args()
    part, parts_of = options.shard
    seeds = names_in(options.seeds)[part - 1 :: parts_of]
    parts = Parts(options.faults, options.nodes, options.checkpoints)
    if len(seeds) == 1:
        return _one(seeds[0], parts, history=options.history)
    total = _many(seeds, options.processes, options.minutes, options.progress)
    print(total.table())
    print(f"\n{total.took / 60:.1f} minutes")
    if options.write:
        _write(total, options.seeds)
    shrinkable = [found for found in total.violations if found[1].invariant != many.CRASH]
    for seed, violation in shrinkable[:_MOST_SHRUNK]:
        print(f"\nseed {seed} violates {violation.invariant!r}: {violation.message}\nshrinking …")
        _tell(*shrink(draw(seed), violation.invariant))
    print(*(f"seed {seed}: {violation.invariant}" for seed, violation in total.violations), sep="\n")
    return 1 if total.violations else 0


def _one(seed: str, parts: Parts, *, history: bool) -> int:
    """Replay one seed, or what a shrunk history names of it."""
    scenario = draw(seed)
    report = simulate(parts.of(scenario), history=True)
    if report.violation is None:
        if history:
            print(*report.history, sep="\n")
        print(f"seed {seed}: nothing is violated in {report.seconds:.0f} simulated seconds, {report.steps} steps")
        return 0
    if parts == Parts() and not history:
        parts, report = shrink(scenario, report.violation.invariant)
    _tell(parts, report)
    return 1


def _tell(parts: Parts, report: Report) -> None:
    for each in report.scenario.nodes:
        told = [each.key, each.name, each.role, f"{each.replicas} replicas", each.task, each.version, each.profile]
        print("node", *told, "with a standby" if each.standby else "without standbys", each.settings)
    print(*report.history, sep="\n")
    print(f"replay it with: {parts.command(report.scenario)}")


def _many(seeds: list[str], processes: int | None, minutes: float, progress: Path | None) -> many.Total:
    """Run them in rounds, so that a bound in time can be kept, and what was done is known when it is started again."""
    total, end = many.Total(), time.monotonic() + minutes * 60
    size = len(seeds) if minutes == float("inf") and progress is None else _ROUND
    done: dict[tuple[str, ...], many.Total] = {}
    if progress is not None and progress.exists():
        done = pickle.loads(progress.read_bytes())
    for start in range(0, len(seeds), size):
        names = tuple(seeds[start : start + size])
        if names not in done:
            if time.monotonic() >= end:
                break
            done[names] = many.run(names, processes)
            if progress is not None:
                temporary = progress.with_name(f"{progress.name}.new")
                temporary.write_bytes(pickle.dumps(done))
                temporary.replace(progress)
        part = done[names]
        total.add(part)
        total.took += part.took
        for seed, violation in part.violations:
            print(f"seed {seed} violates {violation.invariant!r}", flush=True)
    return total


def _write(total: many.Total, seeds: str) -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    _RESULTS.write_text(
        f"# A long run of the simulator\n\nWritten by `make simulate SEEDS={seeds} ARGS=--write` on {when}: "
        f"{total.schedules:,} schedules in {total.took / 60:.0f} minutes on {machine}.\n\n{total.table()}\n"
    )


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise argparse.ArgumentTypeError(f"{text} is not PART/PARTS with a part from 1 to PARTS")
    return int(part), int(parts)


def _numbers(text: str) -> tuple[int, ...]:
    return () if text == "-" else tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
