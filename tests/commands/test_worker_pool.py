"""Build the pool of worker processes from the settings: which machines of a cluster may evaluate must be clear."""

import pytest

from sidecar.commands.ineffective_settings import ineffective
from sidecar.commands.worker_pool import make_workers
from sidecar.errors import SettingsError
from sidecar.settings import load

RAY = {"engine": "ray", "ray_address": "10.0.0.5:6379", "ray_labels": '{"role": "eval"}', "framework": "torch"}


@pytest.fixture
def make(tmp_path):
    """Build a pool from these settings; none of its processes is started."""

    def build(**flags):
        settings = load({"checkpoint_dir": str(tmp_path), **flags}, environ={})
        return make_workers(settings, {}, "n.1", print, warn=pytest.fail)

    return build


def test_a_cluster_is_asked_for_what_the_settings_say(make):
    """One slot for each machine, and as many processors as a worker has threads."""
    workers = make(**RAY, ray_workers=3, devices="gpu", threads=4)
    cluster = workers.engine.cluster
    assert workers.engine.slots == 3
    assert (cluster.resources, cluster.gpu, cluster.labels) == ({"CPU": 4.0}, True, {"role": "eval"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ray_address": None}, "ray_address"),
        ({"ray_labels": None}, "ray_any_node"),
        ({"devices": "0,1"}, "devices"),
        ({"ray_resources": '{"GPU": 1}'}, "GPU"),
        ({"ray_resources": '{"CPU": 0}'}, "ray.resources"),
        ({"ray_labels": '{"role": 1}'}, "ray.labels"),
        ({"ray_address": "10.0.0.5"}, "ray.address"),
    ],
)
def test_settings_that_leave_the_machines_open_are_refused(make, change, named):
    """Training's machines could be slowed down, or none be found."""
    flags = {name: value for name, value in {**RAY, **change}.items() if value is not None}
    with pytest.raises(SettingsError, match=named):
        make(**flags)


def test_any_machine_if_none_trains(make):
    """The user says so."""
    assert make(**RAY | {"ray_labels": "{}", "ray_any_node": True}).engine.cluster.labels == {}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"framework": "python"}, "'python'"),
        (RAY, "engine = 'local'"),
        ({"framework": "torch", "save_weights": "all"}, "save.weights"),
        ({"framework": "torch", "devices": "0,1", "replicas": 2}, "processes_per_worker"),
    ],
)
def test_workers_of_several_processes_are_refused_where_there_are_none(make, change, named):
    """A worker that holds the model alone would run out of memory, after a while."""
    with pytest.raises(SettingsError, match=named):
        make(processes_per_worker=2, **change)


def test_settings_of_what_is_not_there_are_told(tmp_path):
    """They have no effect."""
    settings = load({"checkpoint_dir": str(tmp_path), "ray_workers": 3, "model_parallel": "tensor"}, environ={})
    told = list(ineffective(settings))
    assert any(text.startswith("ray_workers: no effect") for text in told)
    assert any(text.startswith("model_parallel: no effect") for text in told)
