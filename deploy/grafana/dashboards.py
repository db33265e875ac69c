#!/usr/bin/env python3
"""Write the dashboards: `python deploy/grafana/dashboards.py`, after changing anything in `sidecar_dashboards/`.

Needs `grafana-foundation-sdk`, which is in the extra `dev`.
"""

from pathlib import Path

from sidecar_dashboards import all_runs, compare_runs, eval_fleet, training_run
from sidecar_dashboards.dashboard import to_json

FOLDER = Path(__file__).with_name("dashboards")


def dashboards() -> dict[str, str]:
    """Return the content of each file, by its name."""
    return {
        "all-runs.json": to_json(all_runs.build()),
        "compare-runs.json": to_json(compare_runs.build()),
        "training-run.json": to_json(training_run.build()),
        "eval-fleet.json": to_json(eval_fleet.build()),
    }


if __name__ == "__main__":
    for name, text in dashboards().items():
        (FOLDER / name).write_text(text)
