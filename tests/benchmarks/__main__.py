"""Measure, and write down: `python tests/benchmarks [TOPIC…] [--quick]`.

Every topic is a module `bench_<topic>.py` with `measure(quick) -> Table`. The soak can be run in parts. A required
figure that is not reached is said, and ends nothing: only an error is an error. Results lie in results/<topic>.json,
and RESULTS.md is made of them.
"""

import argparse
import importlib
import json
import signal
import sys
import time
import traceback
from pathlib import Path

sys.path += [
    str(Path(__file__).parents[1]),
    str(Path(__file__).parents[1] / "support"),
]  # what tests use, too: a link, a disk

import machine
from table import Table

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TOPICS = (
    "latency",
    "checks",
    "sinks",
    "scaling",
    "torch",
    "lm",
    "collectives",
    "far_link",
    "exact_sums",
    "slices",
    "restore_bytes",
    "memory",
    "trainer",
    "yielding",
    "recovery",
    "counts",
    "footprint",
    "many_runs",
    "long_run",
    "saves",
    "journal_size",
    "watching",
    "page",
    "buckets",
    "nodes",
    "ray",
    "soak",
    "following",
    "early_stop",
    "many_looks",
    "coverage",
    "sample_coverage",
)
PREFACE = """# What was measured

Written by `make bench`, never by hand; `make bench ARGS="latency --quick"` tries one topic and writes nothing. Both
sides of every comparison ran in the same run. Required figures are the project's own aims.
"""


def main():
    parser = argparse.ArgumentParser(prog="tests/benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"of {', '.join(TOPICS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a few rounds, to try it; nothing is written")
    parser.add_argument(
        "--progress",
        type=Path,
        metavar="FOLDER",
        help="keep here what the soak came to; started again, go on behind it",
    )
    options = parser.parse_args()
    if unknown := set(options.topics) - set(TOPICS):
        parser.error(f"no such topic: {', '.join(sorted(unknown))}; there are {', '.join(TOPICS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # end what was started, too
    more = {"soak": {"progress": options.progress}}
    topics = options.topics or TOPICS
    failed = [topic for topic in topics if not _run(topic, options.quick, **more.get(topic, {}))]
    if not options.quick:
        _write_results()
    if failed:
        sys.exit(f"could not be measured: {', '.join(failed)}")


def _run(topic, quick, **more):
    """Measure one topic; whether that worked."""
    where, begin = machine.describe(), time.monotonic()
    print(f"\n… {topic}", flush=True)
    try:
        table = importlib.import_module(f"bench_{topic}").measure(quick, **more)
    except Exception:  # noqa: BLE001 - the other topics are measured still
        traceback.print_exc()
        return False
    measured_on = f"Measured in {time.monotonic() - begin:.0f} s on {where}."
    written = table.to_json(machine=measured_on, quick=quick)
    print(f"\n{table.markdown(measured_on)}\n{written}", flush=True)
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{topic}.json").write_text(written)
    return True


def _write_results():
    found = [json.loads(path.read_text()) for topic in TOPICS if (path := RESULTS / f"{topic}.json").exists()]
    sections = [Table.from_json(body).markdown(body["machine"]) for body in found]
    (HERE / "RESULTS.md").write_text("\n".join([PREFACE, *sections]))


if __name__ == "__main__":
    main()
