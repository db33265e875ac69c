"""How many collectives an evaluation takes, whatever the number of batches."""

from programs import Child, scratch
from table import Figure, Table
from worker_group import Place, WorkerGroup

HOW = """A group of two real worker processes evaluates the same checkpoint three times, warm, for each number of
batches. Collectives are counted by TensorFlow itself, not by this project's code: its runtime logs every ring
reduction that a rank runs (`TF_CPP_VMODULE=ring_reducer=1`)."""
COLUMNS = ("batches", "collectives of rank 0 in an evaluation", "of rank 1")
RUN = "RingReducer::Run"
EVALUATIONS = 3


def measure(quick):
    rows = []
    with scratch() as folder:
        with Child("saver.py", "keras", "dense", folder=folder) as saver:
            path = saver.ask(folder=str(folder / "ckpts"), step=1)["path"]
        for batches in (10, 100) if quick else (10, 100, 1000):
            env = {"BENCH_BATCHES": str(batches), "TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "ring_reducer=1"}
            with WorkerGroup(folder / str(batches), "dense.py", [Place()] * 2, env=env) as worker_group:
                worker_group.evaluate(path)
                before = _counted(worker_group)
                for _ in range(EVALUATIONS):
                    result, _ = worker_group.evaluate(path)
                data = result.data["test"]
                if data.batches != batches:
                    raise RuntimeError(f"{data.batches} batches were evaluated, not {batches}")
                found = [
                    (after - first) / EVALUATIONS for first, after in zip(before, _counted(worker_group), strict=True)
                ]
            rows.append((batches, *found))
    most = max(max(row[1:]) for row in rows)
    if most == 0:
        raise RuntimeError(f"TensorFlow logged no {RUN}: nothing was counted")
    figures = [Figure("collectives per evaluation", most, 3)]
    notes = ["They are: the hello, which rows of the metric states are used, and the sum of those."]
    return Table("Collectives: how often ranks meet", HOW, COLUMNS, rows, figures, notes)


def _counted(worker_group):
    return [log.count(RUN) for log in worker_group.logs()]
