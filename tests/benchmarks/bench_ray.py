"""Measure what a warm evaluation on a Ray cluster takes longer than with local worker processes."""

import contextlib
import random
import statistics
import time
from pathlib import Path

from numpy_trainer import NumpyTrainer
from programs import Daemon, scratch, wait_until
from ray_cluster import PROGRAMS, RayCluster
from table import Figure, Table

TASK = Path(__file__).parents[1] / "integration" / "tasks" / "numpy_plain.py"
ON_RAY = ("127.0.0.3", "127.0.0.4")
COLUMNS = ("", "evaluations", "median s", "lowest quarter s", "highest quarter s")
HOW = """Two daemons evaluate the same small models of numpy in turn, warm, each with two worker processes: one on this
machine, one on two nodes of a real Ray cluster of three on loopback addresses, with the login by token, all with
the same priority. The time of an evaluation is that of the log, from the plan to the result. The models take
milliseconds, so what is left is the way of commands and reports through helper process and actors. Both evaluate each
step one after the other, in random order, so that other programs slow both down: the figure is the median over these
pairs of the time on Ray less the local one."""


def measure(quick):
    rounds = 3 if quick else 40
    trainer = NumpyTrainer()
    with scratch() as folder, RayCluster() as cluster, contextlib.ExitStack() as stack:
        cluster.add(*ON_RAY, role="eval")
        there = {
            "engine": "ray",
            "ray_address": cluster.address,
            "ray_workers": len(ON_RAY),
            "ray_labels": '{"role": "eval"}',
            "ray_resources": '{"CPU": 1}',
            "ray_token_file": cluster.token,
        }
        plain = {
            "framework": "python",
            "checkpoint_pattern": "model-*.npz",
            "quiet_seconds": 0.1,
            "min_workers": len(ON_RAY),
            "standby": "false",
            "yield_seconds": 0,  # workers on Ray do not give way to other programs
            "worker_python": PROGRAMS / "python",
        }
        daemons = {}
        for name, settings in {"local": {"replicas": len(ON_RAY)}, "Ray": there}.items():
            daemons[name] = folder / name, stack.enter_context(Daemon(folder / name, TASK, **plain, **settings))
        for step in range(1, rounds + 3):
            for place, daemon in random.sample(list(daemons.values()), 2):
                trainer.save(place, step)
                wait_until(lambda daemon=daemon, step=step: len(_took(daemon)) >= step, daemon.said, pause=0.2)
                time.sleep(random.uniform(0.1, 0.3))
        took = {name: _took(daemon)[2:] for name, (_, daemon) in daemons.items()}
    trainer.close()
    rows = []
    for name, seconds in took.items():
        low, median, high = statistics.quantiles(seconds, n=4)
        rows.append((name, len(seconds), median, low, high))
    longer = [there - here for here, there in zip(took["local"], took["Ray"], strict=True)]
    low, median, high = statistics.quantiles(longer, n=4)
    figures = [Figure("a warm evaluation on Ray longer than its local pair, median", median, 0.025, unit=" s")]
    notes = [f"The middle half of these differences is from {low:.3f} to {high:.3f} s: on a busy machine it is wide."]
    return Table("Ray: a warm evaluation on a cluster", HOW, COLUMNS, rows, figures, notes)


def _took(daemon):
    return [each["took"] for each in daemon.logged("evaluation_succeeded")]
