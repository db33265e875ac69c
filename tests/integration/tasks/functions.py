"""Functions that measure the model by themselves, and do what the checkpoint says."""

import json
import math
import time
from pathlib import Path

from sidecar import Task


def load(path):
    """Return what the checkpoint holds: a value, and what to do with it."""
    return json.loads(Path(path).read_text())


def harness(model):
    """Return numbers, or what is none."""
    does = model.get("does")
    if does == "raise":
        raise ValueError("the harness has no data")
    while does == "hang":
        time.sleep(3600)
    if does == "nan":
        return {"score": math.nan, "examples": 40}
    if does == "other names":
        return {f"score of {model['value']}": model["value"], "examples": 40}
    if does == "odd names":
        return {"a/b\n<script>\x00\ud800": 0.5, "=1+1": 1, "examples": 40}
    if does == "nothing":
        return None
    if does == "many":
        return {str(number): number for number in range(10_000)}
    return {"score": model["value"], "examples": 40}


def speed(model):
    """Return a number without a number of examples."""
    return {"seconds": 10 - model["value"]}


def hits(model, shard):
    """Return hits and questions of this worker's part."""
    mine = range(100)[shard.rank :: shard.world_size]
    found = sum(question < model["value"] * 10 for question in mine)
    return {"acc": (found, len(mine)), "examples": len(mine)}


task = Task(
    load=load,
    evaluate={"harness": harness, "speed": speed, "hits": hits},
    evaluate_timeout_seconds=2,
    goals={"harness/score": "max", "speed/seconds": "min"},
)
