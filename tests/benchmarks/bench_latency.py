"""From a saved checkpoint to the gauge, over the floor."""

import contextlib
import random
import statistics
import time

import machine
from programs import PHASES, Child, check_workers, phases, scratch, start_nodes
from table import Figure, Table

COLUMNS = ("", "median", "max", "floor", "over floor", *PHASES, "rest")
XLA = {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"}
HOW = """From the end of `CheckpointManager.save()` to the first answer of `/metrics` that shows that step: a
convolutional net on 10,000 examples of 32×32×3 in batches of 64, a real trainer's checkpoint with Adam slots, a
real `sidecar run` with default settings, warm. After each checkpoint the floor evaluates the same one while the
daemon idles: a plain process, warm, with all cores and the data in memory, that restores and runs one traced
function (forward, loss, accuracy). Both read one clock. The two workers are two daemons with one core and one
thread each. Times in seconds; phases are medians of `sidecar history`, `rest` is what they do not explain: the
outcome's way to storage and back, the snapshot, the answer. Nobody asks for `/metrics` before the outcome is in
storage, since answering takes a core's time from the evaluation."""


def measure(quick):
    rounds = 3 if quick else 10
    cores = machine.cpus()
    with scratch() as folder, contextlib.ExitStack() as stack:
        floor = stack.enter_context(Child("floor.py", "keras", folder=folder))
        saver = stack.enter_context(Child("saver.py", "keras", folder=folder))
        pinned = {"threads": 1}
        one = ours(saver, floor, folder / "one", rounds, [{}])
        two = ours(saver, floor, folder / "two", rounds, [{"cores": {core}, **pinned} for core in cores[:2]])
        xla = ours(saver, floor, folder / "xla", rounds, [{"env": XLA}])
    with scratch() as folder:
        peer, by_keras = _peer(folder, rounds)
    measured = {"1 worker": one, "2 workers, a core each": two, "1 worker, XLA auto-jit": xla, "tf_keras": peer}
    rows = [row(name, *each) for name, each in measured.items()]
    figures = [
        Figure("1 worker, median over the floor", ratio(one), 1.15),
        Figure("2 workers on 2 cores, median over the floor", ratio(two), 1.20),
    ]
    over = statistics.median(peer[0]) / by_keras
    peers = f"to the end of its evaluation: {over:.2f} × its own warm `model.evaluate` ({by_keras:.3f} s)"
    notes = [
        f"`tf_keras` is `tf_keras.utils.SidecarEvaluator`, {peers}.",
        "On a busy machine the floor is flattered: it is a plain process, while workers nice themselves.",
        "XLA is TensorFlow's own switch, given to the worker with `worker_env`; it is no setting of this project.",
    ]
    return Table("Latency: checkpoint saved → gauge served", HOW, COLUMNS, rows, figures, notes)


def ours(saver, floor, folder, rounds, nodes, task="conv.py"):
    """Latencies of warm checkpoints, the floor's seconds for the same ones, and phases."""
    with contextlib.ExitStack() as stack:
        publisher, *_ = start_nodes(stack, folder, task, nodes)
        latencies, floors, accuracies = [], [], []
        for step in range(1, rounds + 3):
            saved = saver.ask(folder=str(folder), step=step)
            found = publisher.served(step) - saved["saved"]
            time.sleep(random.uniform(0.5, 1.5))  # the worker tidies up; and no fixed rhythm meets another
            answer = floor.ask(path=saved["path"])
            if step > 2:  # the first is cold, in the second the standby still imports
                latencies.append(found)
                floors.append(answer["seconds"])
                accuracies.append(answer["accuracy"])
        done = publisher.successes()[-rounds:]
    check_workers(done, len(nodes))
    _check_same([row["metrics"]["test"]["accuracy"]["value"] for row in done], accuracies)
    return latencies, floors, phases(done, statistics.median(latencies))


def _peer(folder, rounds):
    """The same for TensorFlow's evaluator; and what its model's own `evaluate` takes, warm."""
    watched = folder / "ckpts"
    watched.mkdir()
    with contextlib.ExitStack() as stack:
        floor = stack.enter_context(Child("floor.py", "tf_keras", folder=folder))
        saver = stack.enter_context(Child("saver.py", "tf_keras", folder=folder))
        peer = stack.enter_context(Child("peer.py", watched, folder=folder))
        latencies, floors, by_keras = [], [], []
        for step in range(1, rounds + 3):
            saved = saver.ask(folder=str(watched), step=step)
            known = peer.answer()
            if known["step"] != step:
                raise RuntimeError(f"saved step {step}, the evaluator told of {known}")
            time.sleep(random.uniform(0.5, 1.5))
            answer = floor.ask(path=saved["path"])
            _check_same([known["accuracy"]], [answer["accuracy"]])
            plain = floor.ask(path=saved["path"], by_keras=True)["seconds"]
            if step > 2:
                latencies.append(known["known"] - saved["saved"])
                floors.append(answer["seconds"])
                by_keras.append(plain)
    return (latencies, floors, dict.fromkeys((*PHASES, "rest"), "")), statistics.median(by_keras)


def _check_same(ours, floors):
    """Raise unless both sides evaluated the same checkpoints; a kernel may round otherwise and turn a few answers."""
    if any(abs(one - other) > 0.001 for one, other in zip(ours, floors, strict=True)):
        raise RuntimeError(f"accuracies {ours} are not those of the floor, {floors}")


def ratio(measured):
    latencies, floors, _ = measured
    return statistics.median(latencies) / statistics.median(floors)


def row(name, latencies, floors, explained):
    latency, floor = statistics.median(latencies), statistics.median(floors)
    return (name, latency, max(latencies), floor, latency / floor, *explained.values())
