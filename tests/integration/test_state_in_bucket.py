"""The state lies in a bucket: two daemons that share nothing else evaluate each checkpoint once, with usual bits."""

import json
import time

import pytest
from integration.test_buckets import Bucket, numbers
from integration.torch_trainer import TORCH

pytestmark = pytest.mark.seconds

RAPID = {
    "SIDECAR_BEAT_SECONDS": "1",
    "SIDECAR_SWEEP_SECONDS": "2",
    "SIDECAR_LEASE_SECONDS": "10",
    "SIDECAR_MIN_WORKERS": "2",
}


class Nodes(Bucket):
    """A bucket with checkpoints and state, and machines with a disk each."""

    def on(self, node, command, *words, **more):
        """Start a command on a machine of this name."""
        state = ("--state-dir", f"{self.server.url}/state")
        self.environ["XDG_STATE_HOME"] = str(self.home / f"disk-{node}")
        self.environ |= RAPID | more
        if command == "run" and "--role" not in words:
            words = (*words, "--node", node, "--role", "worker")
        return self.start(command, *words, *state)

    def keys(self, folder):
        """Return the names of all objects below a folder."""
        from obstore.store import from_url

        names = {name.lower(): value for name, value in self.server.environment.items() if "ALLOW_HTTP" not in name}
        store = from_url(self.server.url, config=names, client_options={"allow_http": True})
        return sorted(each["path"] for page in store.list(folder) for each in page)


@pytest.fixture
def new_nodes(sidecar, tasks, start_bucket, tmp_path):
    """`new_nodes("localbucket")` is an empty bucket on that server, and machines for it."""

    def make(name):
        return Nodes(start_bucket(name), sidecar, tmp_path, tasks / "torch_plain.py", TORCH)

    return make


def test_a_daemon_joins_in_a_bucket_and_commands_find_it(new_nodes, until):
    """A chief's node, which needs no framework: it beats, `check` and `status` read it, and it leaves when told to."""
    nodes = new_nodes("moto_server")
    chief = nodes.on("a", "run", "--node", "a", "--role", "chief", "--http", "127.0.0.1:0")
    until(lambda: "state/ckpts/members/a.json" in nodes.keys("state"), lambda: chief.err)
    checked = nodes.on("c", "check", "--role", "chief").wait()
    assert ("s3://runs/state/ckpts is writable" in checked.out, checked.code) == (True, 0), checked.out
    assert nodes.environ["AWS_SECRET_ACCESS_KEY"] not in checked.out + checked.err
    status = nodes.on("c", "status").wait()
    assert (status.code, "its state in s3://runs/state" in " ".join(status.out.split())) == (0, True)
    chief.process.terminate()
    assert chief.wait().code == 0, chief.err
    assert nodes.keys("state") == ["state/ckpts/members/a.json", "state/ckpts/run.json"]


def test_a_store_that_ignores_conditions_is_refused_at_the_start(new_nodes):
    """No run begins there: the daemon ends before it creates one, and `check` says the same."""
    nodes = new_nodes("s3rver")
    daemon = nodes.on("a", "run", "--node", "a", "--role", "chief", "--http", "127.0.0.1:0").wait()
    assert (daemon.code, "If-None-Match" in daemon.said) == (2, True), daemon.err
    checked = nodes.on("a", "check", "--role", "chief").wait()
    assert (checked.code, "If-None-Match" in checked.out) == (1, True), checked.out
    assert nodes.keys("state") == []


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("moto_server", "stop"),
        ("localbucket", "kill"),
        ("azurite-blob", "stop"),
    ],
)
def test_two_machines_share_a_bucket_alone(torch_trainer, until, new_nodes, tmp_path, name, trouble):
    """Both take part in each evaluation, while the server hangs or is killed; saves and an export are in the bucket."""
    nodes, folder = new_nodes(name), tmp_path / "local"
    saved = [folder / each["name"] for each in torch_trainer.save(folder, 10, 20, 30)]
    best = {"SIDECAR_EXPORT_BEST": "1", "SIDECAR_BEST_METRIC": "test/accuracy", "SIDECAR_BEST_BY": "significant"}
    daemons = [nodes.on(node, "run", "--stop-after-step", "30", **best) for node in ("a", "b")]

    def has_evaluated(count):
        assert [daemon.process.poll() for daemon in daemons] == [None, None], daemons[0].err + daemons[1].err
        return daemons[0].err.count('"evaluation_succeeded"') >= count

    nodes.upload(saved[0])
    until(lambda: has_evaluated(1), lambda: "\n".join(daemon.err for daemon in daemons))
    if trouble == "kill":
        nodes.server.kill()
        until(lambda: '"storage_failed"' in daemons[0].err, lambda: daemons[0].err)
        nodes.server.start()
    else:
        nodes.server.stop()
        time.sleep(2)
        nodes.server.resume()
    for path in saved[1:]:
        nodes.upload(path)
    ended = [daemon.wait() for daemon in daemons]
    assert [each.code for each in ended] == [0, 0], ended[0].err + ended[1].err
    history = nodes.on("c", "history", "--json").wait()
    found = numbers(history)
    assert [(step, status) for _, step, status, _ in found] == [(step, "succeeded") for step in (10, 20, 30)]
    assert [row["workers"] for row in json.loads(history.out)] == [2, 2, 2]
    states = [key for key in nodes.keys("state") if key.endswith("/states.json")]
    assert [key.split("/")[-2] for key in states] == ["worker-0-of-2", "worker-1-of-2"] * 3
    copied = nodes.on("c", "best", "--copy-to", tmp_path / "copied").wait()
    exported = json.loads(nodes.on("c", "best", "--json").wait().out)
    assert exported["path"].startswith(f"{nodes.server.url}/state/ckpts/exports/{exported['checkpoint']}@")
    content = (tmp_path / "copied" / exported["checkpoint"]).read_bytes()
    assert (copied.code, content == (folder / exported["checkpoint"]).read_bytes()) == (0, True), copied.err
    assert list(nodes.home.glob("disk-*/sidecar/state-*/ckpts/pins/[!.]*")) == []
    secret = next(value for variable, value in nodes.server.environment.items() if variable.endswith("_KEY"))
    assert secret not in ended[0].err + ended[1].err
    assert found == nodes.locally(folder)
