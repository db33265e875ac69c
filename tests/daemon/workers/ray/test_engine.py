"""The daemon's side of a Ray cluster: a program stands for the helper process, and speaks as that does."""

import json
import os
import queue
import sys
from pathlib import Path

import pytest

from sidecar.daemon.workers.process import Exited
from sidecar.daemon.workers.ray.engine import RayCluster, RayEngine, RayLaunch
from sidecar.protocol.messages import Check, Failed, Phase, Ready
from sidecar.protocol.states import WorkerPhase

PLACED = {"host": "10.0.0.7", "address": "10.0.0.7:23100", "pid": 4711}
READY = '{"type": "Ready", "framework": "torch", "version": "2"}'
CHECK = Check(task="t.py:task", framework="torch", search_path="/", threads=1)


@pytest.fixture
def engine(tmp_path):
    """Make an engine whose helper process runs this code for each request; `about` is the first line it got."""
    made = []

    def make(*code, token=None):
        script = tmp_path / "helper"
        lines = [
            f"#!{sys.executable}",
            "import json, os, sys",
            "def tell(worker=None, **event): print(json.dumps({'worker': worker} | event), flush=True)",
            "about = json.loads(sys.stdin.readline())",
            "for line in sys.stdin:",
            "    request = json.loads(line)",
            "    if 'release' in request: sys.exit(0)",
            *(f"    {each}" for each in code),
        ]
        script.write_text("\n".join(lines))
        script.chmod(0o700)
        cluster = RayCluster(address="10.0.0.5:6379", workers=2, resources={"CPU": 2.0}, gpu=False, labels={"a": "b"})
        launch = RayLaunch(
            interpreter=str(script),
            framework="torch",
            changes={},
            ports=(23100, 23199),
            logs="/logs",
            directory="/",
            folders=("/ckpts",),
        )
        environment = dict(os.environ) | {"RAY_AUTH_TOKEN": "of another cluster"}
        made.append(RayEngine(cluster=cluster, launch=launch, token=token, environment=environment))
        return made[-1]

    yield make
    for each in made:
        each.release()


@pytest.fixture
def inbox():
    """Receive the events of all workers."""
    return queue.SimpleQueue()


def place(engine, inbox, worker="n.1.1", slot=0):
    return engine.place(worker, slot, running=(), post=lambda *event: inbox.put(event))


def test_a_worker_has_no_address_until_the_cluster_has_a_machine(engine, inbox):
    """Then its import begins, for which it has a limit."""
    worker = place(engine(f"if 'place' in request: tell('n.1.1', placed={PLACED})"), inbox)
    assert worker.phase is WorkerPhase.PLACE
    assert inbox.get(timeout=240) == ("n.1.1", Phase(WorkerPhase.IMPORT))
    assert (worker.address, worker.host, worker.pid, worker.waits()) == ("10.0.0.7:23100", "10.0.0.7", 4711, {})


def test_reports_commands_and_the_end_are_passed_on(engine, inbox):
    """As between a daemon and a process of its machine."""
    end = {"status": -9, "tail": "Killed", "memory_short": True, "why": ""}
    worker = place(
        engine(
            f"if 'place' in request: tell('n.1.1', report={READY!r})",
            "if 'send' in request and json.loads(request['send'])['type'] == 'Check': tell('n.1.1', halted=True)",
            f"if request.get('kill') == 'n.1.1': tell('n.1.1', exited={end})",
        ),
        inbox,
    )
    assert inbox.get(timeout=240) == ("n.1.1", Ready("torch", "2"))
    worker.send(CHECK)
    assert inbox.get(timeout=240)[1].halted
    worker.kill()
    assert inbox.get(timeout=240) == ("n.1.1", Exited(-9, "Killed", memory_short=True))


@pytest.mark.parametrize("line", ["nonsense", '{"type": "Join"}'])
def test_a_report_that_is_none_ends_the_worker(engine, inbox, line):
    """It is a fault of the worker process, which is killed."""
    code = f"if 'place' in request: tell('n.1.1', report={line!r})", "if 'kill' in request: sys.exit(3)"
    place(engine(*code), inbox)
    assert isinstance(inbox.get(timeout=240)[1], Failed)
    assert isinstance(inbox.get(timeout=240)[1], Exited)


def test_the_end_of_the_helper_process_is_that_of_all_workers(engine, inbox):
    """With the reason; the next worker gets another helper process."""
    made = engine("if request.get('slot') == 1: tell(fatal='no head'), sys.exit(1)")
    place(made, inbox)
    place(made, inbox, "n.1.2", 1)
    ended = dict(inbox.get(timeout=240) for _ in range(2))
    assert ended.keys() == {"n.1.1", "n.1.2"}
    assert all("no head" in each.why for each in ended.values())
    place(made, inbox, "n.1.3", 1)
    assert inbox.get(timeout=240)[0] == "n.1.3"


def test_a_helper_process_that_reads_nothing_is_ended(engine, inbox):
    """The daemon's loop must not wait for it."""
    worker = place(engine("import time; time.sleep(600)"), inbox)
    for _ in range(2000):
        worker.send(CHECK)
    assert isinstance(inbox.get(timeout=240)[1], Exited)


@pytest.mark.parametrize("token", [None, Path("/run/token")])
def test_the_login_is_explicit(engine, inbox, token):
    """A token in the environment belongs to another cluster; without a file the login is off."""
    code = "tell(fatal=json.dumps({name: os.environ.get(name) for name in os.environ if name.startswith('RAY_')}))"
    place(engine(code, "sys.exit(1)", token=token), inbox)
    found = json.loads(inbox.get(timeout=240)[1].why.partition(": ")[2])
    login = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)} if token else {"RAY_AUTH_MODE": "disabled"}
    assert found == {"RAY_ENABLE_AUTO_CONNECT": "0", "RAY_USAGE_STATS_ENABLED": "0"} | login


def test_what_the_cluster_is_asked_for(engine, inbox):
    """The first line names the cluster, and each worker its slot, the folders it needs and the version of the code."""
    place(engine("tell(fatal=json.dumps([about, request])), sys.exit(1)"), inbox)
    about, request = json.loads(inbox.get(timeout=240)[1].why.partition(": ")[2])
    assert (about["workers"], about["labels"]) == (2, {"a": "b"})
    assert (request["slot"], request["place"]["folders"], len(request["place"]["code"])) == (0, ["/ckpts"], 64)
