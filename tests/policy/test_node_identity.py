"""Name a node and the addresses at which it is reached."""

import json

import pytest

from sidecar.errors import SettingsError
from sidecar.policy.node_identity import advertised_host, node_name, page_url
from sidecar.settings import Settings

WORKERS = {"worker": ["10.0.0.2:2222", "10.0.0.3:2222"]}


def settings(**given):
    return Settings(checkpoint_dir="/data/run", **given)


def tf_config(cluster, task, index):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task, "index": index}})}


IS_WORKER = tf_config({"chief": ["10.0.0.1:2222"], **WORKERS}, "worker", 1)


def test_the_node_is_named_by_setting_then_task_then_slurm_then_host():
    """The first that is there names the node."""
    in_slurm = {"SLURMD_NODENAME": "n3"}
    assert node_name(settings(), IS_WORKER | in_slurm, hostname=lambda: "host-7") == "worker-1"
    assert node_name(settings(), in_slurm, hostname=lambda: "host-7") == "n3"
    assert node_name(settings(node="mine"), IS_WORKER, hostname=lambda: "host-7") == "mine"
    assert node_name(settings(), IS_WORKER, hostname=lambda: "host-7") == "worker-1"
    assert node_name(settings(), {}, hostname=lambda: "host-7") == "host-7"


def test_a_host_name_that_cannot_name_a_node_asks_for_one():
    """A name becomes a file name on shared storage."""
    with pytest.raises(SettingsError, match=r"'my host'.*--node NAME.*SIDECAR_NODE"):
        node_name(settings(), {}, hostname=lambda: "my host")
    with pytest.raises(SettingsError, match=r"SLURMD_NODENAME.*'n/0'.*--node NAME"):
        node_name(settings(), {"SLURMD_NODENAME": "n/0"}, hostname=lambda: "host-7")


@pytest.mark.parametrize(
    ("given", "environ", "expected"),
    [
        ({"host": "10.9.9.9"}, IS_WORKER, "10.9.9.9"),
        ({}, IS_WORKER, "10.0.0.3"),
        ({}, tf_config({"worker": ["job-worker-0.ns.svc:2222"]}, "worker", 0), "job-worker-0.ns.svc"),
        ({}, tf_config({"worker": ["[fd00::7]:2222"]}, "worker", 0), "[fd00::7]"),
        ({}, tf_config({"worker": ["plain"]}, "worker", 0), "plain"),
        ({}, tf_config(WORKERS, "evaluator", 0), "172.16.0.1"),
        ({}, {}, "172.16.0.1"),
    ],
)
def test_the_advertised_host_is_setting_then_cluster_then_own(given, environ, expected):
    """Beside a training job the daemon is reachable where the job's own task is."""
    assert advertised_host(settings(**given), environ, own=lambda: "172.16.0.1") == expected


@pytest.mark.parametrize("address", ["0.0.0.0:2222", "grpc://a:1", ":2222"])
def test_a_cluster_address_that_nobody_can_dial_is_refused(address):
    """The others would dial themselves, or nothing."""
    with pytest.raises(SettingsError) as caught:
        advertised_host(settings(), tf_config({"worker": [address]}, "worker", 0))
    assert repr(address) in str(caught.value)
    assert "give --host HOST" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"http": "localhost:19108"}, None),
        ({"http": "[::1]:19108"}, None),
        ({"http": "10.0.0.9:19108"}, "http://10.0.0.9:19108/"),
        ({"http": "[fd00::9]:80"}, "http://[fd00::9]:80/"),
        ({"http": "0.0.0.0:19108"}, "http://10.0.0.3:19108/"),
        ({"http": "[::]:19108", "host": "gpu-7"}, "http://gpu-7:19108/"),
        ({"http": "0.0.0.0:0"}, None),
        ({"http": "0.0.0.0:19108", "host": "127.0.0.1"}, None),
        ({"page_url": "https://evals.example.com/worker-1"}, "https://evals.example.com/worker-1"),
    ],
)
def test_the_page_of_a_node_is_where_others_reach_it(given, expected):
    """No page is linked that only this machine reaches."""
    assert page_url(settings(**given), IS_WORKER) == expected


def test_the_page_of_a_node_has_the_scheme_of_its_port():
    """A port with TLS answers nothing else."""
    assert page_url(settings(http="10.0.0.9:19108"), {}, "https") == "https://10.0.0.9:19108/"
