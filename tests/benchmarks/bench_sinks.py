"""From a saved checkpoint to the gauge while every sink and hook is in trouble, over the same without any."""

import contextlib
import json
import random
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

from programs import Daemon, scratch
from table import Figure, Table

sys.path.append(str(Path(__file__).parents[1] / "integration" / "tasks"))
from numpy_trainer import NumpyTrainer

TASK = Path(__file__).parents[1] / "integration" / "tasks" / "numpy_plain.py"
COLUMNS = ("", "median s", "max s", "results behind")
HOW = """From the rename of a saved model of numpy to the first answer of `/metrics` that shows its step, with
`framework = "python"`, without the wait for quiet files. Two daemons in turn, the second with every sink and hook:
remote write and two URLs to a server that takes connections and never answers, MLflow at a port where nobody listens,
TensorBoard's directory below a file, a command that sleeps for ever, one that prints for ever, and one that fails."""


def measure(quick):
    rounds = 3 if quick else 20
    trainer = NumpyTrainer()
    with scratch() as folder, contextlib.ExitStack() as stack:
        silent = stack.enter_context(_silent_server())
        (folder / "file").write_text("")
        daemons = {}
        for name, settings in {"no sinks": {}, "all sinks and hooks in trouble": _troubled(folder, silent)}.items():
            place = folder / name.replace(" ", "-")
            plain = {"framework": "python", "checkpoint_pattern": "model-*.npz", "quiet_seconds": 0.1}
            daemon = stack.enter_context(Daemon(place, TASK, **plain, **settings))
            daemon.is_standing_by()
            daemons[name] = daemon, place, []
        for step in range(1, rounds + 3):
            for daemon, place, latencies in random.sample(list(daemons.values()), 2):
                trainer.save(place, step)
                saved = time.monotonic()
                latency = daemon.served(step) - saved
                if step > 2:
                    latencies.append(latency)
                time.sleep(random.uniform(0.1, 0.5))
        behind = {name: _behind(daemon) for name, (daemon, _, _) in daemons.items()}
    trainer.close()
    medians = {name: statistics.median(latencies) for name, (_, _, latencies) in daemons.items()}
    rows = [(name, medians[name], max(latencies), behind[name]) for name, (_, _, latencies) in daemons.items()]
    calm, troubled = medians.values()
    figures = [Figure("gauge with all sinks and hooks in trouble, median over that without any", troubled / calm, 1.05)]
    return Table("Sinks: the gauge while all of them are in trouble", HOW, COLUMNS, rows, figures)


def _troubled(folder, silent):
    """Settings of sinks and hooks none of which works."""
    hooks = {
        "result": {"command": ["sleep", "100000"]},
        "best": {"command": ["yes"]},
        "nan": {"command": ["false"]},
        "failure": f"http://{silent}/failure",
        "end": f"http://{silent}/end",
    }
    return {
        "remote_write": f"http://{silent}/api/v1/write",
        "tensorboard_dir": folder / "file" / "logs",
        "mlflow_tracking_uri": "http://127.0.0.1:9",
        "hooks": json.dumps(hooks),
    }


@contextlib.contextmanager
def _silent_server():
    """Take connections, and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    held.append(server.accept())

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def _behind(daemon):
    """Return how many results the sinks lack, added up."""
    lines = [line for line in daemon.get("/metrics").splitlines() if line.startswith("sidecar_sink_pending_results{")]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)
