"""Evaluate a language model of 403 MB in one process or in several that divide it, and tell the memory that each took.

Run as `python divided_memory.py FOLDER PROCESSES WAY`. It writes JSON: the peak of each process in MB, as a worker
reports it. Each process is started anew, as a worker is. The model has 6 blocks, or with `BLOCKS=24` in the environment
24 that are narrower.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

BLOCKS = int(os.environ.get("BLOCKS", "6"))
WIDTH = {6: 1024, 24: 512}[BLOCKS]
SIZES = {
    "vocab_size": 1000,
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 64,
}


def build():
    """A Llama with equal blocks."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    return AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))


def task():
    """Eight rows of tokens, of which the last is to be predicted."""
    import torch

    from sidecar import Task

    tokens = torch.arange(8 * 17).reshape(8, 17) % SIZES["vocab_size"]
    return Task(
        build_model=build,
        eval_sets={"test": lambda: torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, -1])},
        loss=torch.nn.CrossEntropyLoss(),
        batch_size=4,
        step=lambda model, batch: (batch[1], model(batch[0]).logits[:, -1]),
    )


def evaluate(folder, processes, way, process, meeting):
    """Evaluate in this process, as a worker does, and return the peak of its memory in bytes."""
    from concurrent.futures import ThreadPoolExecutor

    from sidecar.evaluation.backends.torch.backend import TorchBackend
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.rank_evaluation import RankEvaluation
    from sidecar.protocol.messages import Evaluate, Join
    from sidecar.protocol.records import Checkpoint, Member

    usual = {"group": "g", "members": (Member(0, "node", "w", ""),), "rank": 0, "task": "t", "framework": "torch"}
    options = {"model_parallel": way}
    rest = {"search_path": "/", "threads": 1, "options": options, "meeting": meeting}
    join = Join(**usual, **rest, processes=processes, process=process)
    backend = TorchBackend()
    collective = backend.join(join)
    done = RankEvaluation(
        command=Evaluate(
            plan=1,
            checkpoint=Checkpoint(name="step-1", digest="digest", step=1, format="any"),
            path=f"{folder}/step-1",
            save_to=f"{folder}/saves-{processes}-{way}",
            save_weights="none",
            progress_seconds=0.0,
        ),
        join=join,
        collective=collective,
        evaluator=backend.build(task(), Shard(0, 1), join),
        task_digest="t",
        profile={},
        enter=lambda _: None,
        report=lambda _: None,
        in_parallel=ThreadPoolExecutor(1),
    ).run()
    return done.memory_bytes


def main(folder, processes, way):
    """Write the checkpoint unless it is there, and evaluate it in so many processes."""
    from sidecar.evaluation.framework_traits import traits_of

    if not Path(folder, "step-1").exists():
        save = "import sys; sys.path.insert(0, sys.argv[1]); import divided_memory as m; m.save(sys.argv[2])"
        subprocess.run([sys.executable, "-W", "ignore", "-c", save, Path(__file__).parent, folder], check=True)
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        place.bind(("127.0.0.1", 0))
        meeting = f"127.0.0.1:{place.getsockname()[1]}" if processes > 1 else ""
        words = [sys.executable, "-W", "ignore", __file__, folder, str(processes), way]
        environment = {**os.environ, **traits_of("torch").environment}
        started = [
            subprocess.Popen([*words, str(process), meeting], stdout=subprocess.PIPE, env=environment)
            for process in range(processes)
        ]
        peaks = [int(each.communicate()[0]) for each in started]
    sys.stdout.write(json.dumps([peak / 1e6 for peak in peaks]))


def save(folder):
    """Write the checkpoint, as training would with torch.distributed.checkpoint."""
    import torch
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(1)
    dcp.save(build().state_dict(), checkpoint_id=f"{folder}/step-1", no_dist=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[4]))
    if len(sys.argv) > 4:
        sys.stdout.write(str(evaluate(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])))
    else:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
