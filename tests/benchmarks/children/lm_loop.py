"""Answer the log-likelihood requests of a task with the harness's own loop: `lm_loop.py FOLDER TASK`. One thread."""

import contextlib
import json
import sys
import time

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

folder, name = sys.argv[1:]
torch.set_num_threads(1)
with contextlib.redirect_stdout(sys.stderr):
    model = HFLM(pretrained=f"{folder}/base", batch_size=8, device="cpu")
    manager = TaskManager(include_path=f"{folder}/tasks", include_defaults=False)
    task = manager.load([name])["tasks"][name]
    task.build_all_requests()
for _ in sys.stdin:
    begin = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        model.loglikelihood(task.instances, disable_tqdm=True)
    seconds = time.process_time() - begin
    sys.stdout.write(json.dumps({"seconds": seconds, "requests": len(task.instances)}) + "\n")
    sys.stdout.flush()
