"""The task of the harness in the folder that `BENCH_LM` names."""

import os

from sidecar import Task
from sidecar.lm import harness, model

FOLDER = os.environ["BENCH_LM"]

task = Task(
    build_model=model(f"{FOLDER}/base"),
    eval_sets=harness("choice", include_path=f"{FOLDER}/tasks", tokenizer=f"{FOLDER}/base"),
)
