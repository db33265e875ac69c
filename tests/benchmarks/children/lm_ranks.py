"""Run tasks with lm-evaluation-harness, in one process or as a rank of torchrun: `lm_ranks.py FOLDER OUT TASK…`.

The harness divides documents among ranks only if it counts several GPUs. There are none here, so it is told that there
is one for each rank; everything else is its own.
"""

import json
import os
import sys
from pathlib import Path

import torch

ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    torch.cuda.device_count = lambda: ranks

import lm_eval  # noqa: E402 - it may ask for the number of GPUs at once
from lm_eval.tasks import TaskManager  # noqa: E402

folder, out, *tasks = sys.argv[1:]
torch.set_num_threads(1)
results = lm_eval.simple_evaluate(
    model="hf",
    device="cpu",
    model_args={"pretrained": f"{folder}/base"},
    tasks=tasks,
    task_manager=TaskManager(include_path=f"{folder}/tasks", include_defaults=False),
    batch_size=8,
    bootstrap_iters=100,
)
if results is not None:  # the first rank
    Path(out).write_text(json.dumps(results["results"], default=str))
