"""One daemon with two worker processes that evaluates the plain task: numbers, warmth, what it shows, what it costs.

The task can be held up at a gate, for the death of a worker in the middle of an evaluation.
"""

import json
import os
import signal

import psutil
import pytest

pytestmark = pytest.mark.tensorflow

STEPS = (100, 200, 300)
FRAMEWORKS = ("tensorflow", "keras", "torch", "numpy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plain") / "ckpts"


@pytest.fixture(scope="module")
def saved(writer, folder):
    """Return what Keras found for three checkpoints."""
    return writer.save(folder, *STEPS)


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """Create the folder of the gate in tasks/gate.py."""
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module")
def daemon(sidecar, saved, folder, gate):
    """Has evaluated the three."""
    found = sidecar.run(folder, "--replicas", 2, task="gated.py", GATE=str(gate), SIDECAR_CACHE_BYTES="0")
    found.evaluated(*saved)
    return found


def test_numbers_are_those_of_keras_in_one_process(daemon, saved):
    """Counts are equal, accuracy is their quotient in float64, the loss differs by less than 1e-6 of itself."""
    for each in saved:
        row = daemon.evaluated(each)[each["name"]]
        values = row["metrics"]["test"]
        assert row["examples"] == {"test": each["examples"]}
        assert values["accuracy"]["value"] == each["correct"] / each["examples"]
        assert values["loss"]["value"] == pytest.approx(each["loss"], rel=1e-6)
        assert (row["step"], row["workers"]) == (each["step"], 2)


def test_steps_order_the_queue(daemon):
    """Checkpoints that lie there at the start are evaluated from the oldest step on."""
    assert [row["step"] for row in daemon.successes()][: len(STEPS)] == list(STEPS)


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [1, 3])
def test_bits_do_not_depend_on_the_number_of_workers(sidecar, daemon, saved, folder, workers, tasks, gate):
    """`sidecar eval` with 1 and 3 workers finds the bits of the daemon, which has 2."""
    last = saved[-1]
    words = ("eval", folder / last["name"], "--task", f"{tasks / 'gated.py'}:task", "--replicas", workers, "--json")
    done = sidecar.command(*words, GATE=str(gate))
    assert done.code == 0, done.err
    result = json.loads(done.out)
    listed = json.loads(sidecar.command("history", "--checkpoint-dir", folder, "--json").out)
    row = next(row for row in listed if row["checkpoint"] == last["name"])
    assert row["workers"] == 2
    assert {name: each["hex"] for name, each in result["metrics"]["test"].items()} == {
        name: each["hex"] for name, each in row["metrics"]["test"].items()
    }
    assert result["workers"] == workers == len(result["saves"])
    assert result["digest"] == row["digest"]
    assert daemon.process.poll() is None


def test_next_checkpoints_need_no_new_process_trace_or_model(daemon, writer, folder):
    """Two more checkpoints are evaluated by the same processes, which build and trace nothing."""
    before = daemon.worker_pids(), daemon.worker_logs()
    group = daemon.successes()[-1]["group"]
    more = writer.save(folder, 400, 500)
    found = daemon.evaluated(*more)
    assert {row["group"] for row in found.values()} == {group}
    assert daemon.worker_pids().keys() == before[0].keys()
    assert len(daemon.log("worker_started")) == 2
    assert before[1].count("MODEL BUILT") == 2  # one per worker
    assert before[1].count("STEP TRACED") >= 2
    assert daemon.worker_logs() == before[1]


def test_only_the_newest_evaluations_keep_weights(daemon, saved):
    """Every evaluation keeps each worker's metric states, the newest two their weights as well."""
    rows = daemon.successes()

    def kept():
        folders = [daemon.run_dir / path for row in rows for path in _saves(daemon, row)]
        return [(any(path.glob("weights*")), any(path.glob("*.json"))) for path in folders]

    expected = [(False, True)] * 2 * (len(rows) - 2) + [(True, True)] * 4
    daemon.until(lambda: kept() == expected, f"weights of the newest two only: {kept()}")
    assert len(saved) <= len(rows)


def _saves(daemon, row):
    plans = daemon.run_dir / "outcomes" / f"{row['plan']:012d}.json"
    return json.loads(plans.read_text())["result"]["saves"]


def test_the_daemon_stays_small(daemon):
    """Less than 70 MB resident after evaluations, and no framework is mapped into it."""
    process = psutil.Process(daemon.pid)
    assert process.memory_info().rss < 70_000_000
    mapped = [region.path.lower() for region in process.memory_maps()]
    assert not [path for path in mapped if any(f"/{name}" in path for name in FRAMEWORKS)]


def test_pages_answer(daemon):
    """Health, readiness, the page for people and its JSON."""
    assert daemon.get("/healthz") == (200, "ok\n")
    assert daemon.get("/readyz") == (200, "ok\n")
    code, page = daemon.get("/")
    assert code == 200
    assert "ckpt-3" in page
    status = daemon.status()
    assert (status["ready"], status["role"], status["pending"]) == (True, "worker", 0)
    assert status["evaluated"] == len(daemon.successes())
    assert daemon.get("/nothing")[0] == 404


def test_metrics_show_what_the_journal_holds(daemon):
    """The newest evaluation's values stand in /metrics, which Prometheus' own parser reads."""
    newest = daemon.successes()[-1]
    shown = daemon.samples("sidecar_eval_metric")
    assert shown == {
        (("eval_set", "test"), ("metric", name)): each["value"] for name, each in newest["metrics"]["test"].items()
    }
    assert daemon.samples("sidecar_eval_checkpoint_step") == {(): newest["step"]}
    assert daemon.samples("sidecar_checkpoints_evaluated_total") == {(): len(daemon.successes())}
    assert daemon.samples("sidecar_checkpoints_pending") == {(): 0}


def test_a_killed_worker_is_replaced(daemon, writer, folder, gate):
    """The daemon reports it at once, the other rank stops waiting in the sums, and two new processes evaluate again."""
    (gate / "hold-evaluate").touch()
    (saved,) = writer.save(folder, 600)
    daemon.until(lambda: len(list(gate.glob("at-evaluate-*"))) == 2, "both ranks at the gate")
    before = daemon.worker_pids()
    os.kill(min(before), signal.SIGKILL)
    (gate / "hold-evaluate").unlink()
    row = daemon.evaluated(saved)[saved["name"]]
    (lost,) = (each for each in daemon.history() if each["status"] == "failed")
    assert (lost["checkpoint"], lost["kind"]) == (saved["name"], "worker_died")
    assert "was killed by SIGKILL" in lost["message"]
    assert row["workers"] == 2
    assert row["metrics"]["test"]["accuracy"]["value"] == saved["correct"] / saved["examples"]
    assert row["metrics"]["test"]["loss"]["value"] == pytest.approx(saved["loss"], rel=1e-6)
    assert not before.keys() & daemon.worker_pids().keys()


def test_sigterm_ends_it(daemon, alive, until):
    """With exit code 0, and its workers with it; their guards follow when they are gone."""
    pids = daemon.children()
    assert len(pids) == 4  # two workers, and the guard of each
    assert daemon.end(signal.SIGTERM).code == 0
    until(lambda: not alive(pids), lambda: f"the guards to end: {alive(pids)}", 30)
