"""The environment of a worker: the daemon's own, without the training job's."""

import pytest
from daemon.workers.environments import made

OF_THE_JOB = """
TF_CONFIG MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK NODE_RANK
TORCHELASTIC_RUN_ID SLURM_NODEID NCCL_COMM_ID KUBEFLOW_TRAINER_SERVER_URL NOTIFY_SOCKET WATCHDOG_PID
"""


@pytest.mark.parametrize("name", OF_THE_JOB.split())
def test_what_belongs_to_the_job_is_removed(name):
    """A worker that inherited it would join the training cluster, or speak to systemd in the daemon's name."""
    assert name not in made({name: "1"})


@pytest.mark.parametrize("name", ["PATH", "HOME", "LD_LIBRARY_PATH", "RANKING", "MY_TF_CONFIG", "NCCL_DEBUG"])
def test_all_else_is_kept(name):
    """Names that only look alike, too."""
    assert made({name: "value"})[name] == "value"


def test_what_we_promise():
    """GPUs are the daemon's choice, the port is shared, output is not buffered, Keras computes with TensorFlow."""
    environment = made({"CUDA_VISIBLE_DEVICES": "0,1,2"}, devices="2")
    assert environment["CUDA_VISIBLE_DEVICES"] == "2"
    assert environment["TF_GRPC_REUSE_PORT"] == "1"
    assert environment["PYTHONUNBUFFERED"] == "1"
    assert environment["KERAS_BACKEND"] == "tensorflow"


@pytest.mark.parametrize("framework", ["tensorflow", "torch", "python"])
def test_texts_have_the_same_hash_in_all_workers(framework):
    """Models may depend on it: Doc2Vec begins with vectors made of hashes."""
    assert made(framework=framework)["PYTHONHASHSEED"] == "0"
    assert made({"PYTHONHASHSEED": "random"}, framework=framework)["PYTHONHASHSEED"] == "0"
    assert made({"PYTHONHASHSEED": "7"}, framework=framework)["PYTHONHASHSEED"] == "7"
    assert made(changes={"PYTHONHASHSEED": "random"}, framework=framework)["PYTHONHASHSEED"] == "random"


def test_another_framework_gets_no_variables_of_tensorflow():
    """Variables of TensorFlow and Keras may disturb another framework and mislead readers, so they are left out."""
    environment = made(framework="another")
    assert not [name for name in environment if name.startswith(("TF_", "KERAS_"))]
    assert environment["PYTHONUNBUFFERED"] == "1"


def test_no_proxy_before_the_group():
    """Addresses of the group are added to both spellings, once, behind what was there."""
    environment = made({"no_proxy": "a,10.0.0.7", "NO_PROXY": ""}, hosts=["10.0.0.7", "node-2"])
    assert environment["no_proxy"] == "a,10.0.0.7,localhost,127.0.0.1,node-2"
    assert environment["NO_PROXY"] == "localhost,127.0.0.1,10.0.0.7,node-2"


def test_the_user_has_the_last_word():
    """`worker_env` sets, replaces and removes, also what was removed or promised."""
    environment = made({"A": "1", "B": "2"}, {"A": None, "B": "3", "C": "4", "TF_CONFIG": "{}", "NONE": None})
    assert {name: environment.get(name) for name in "ABC"} == {"A": None, "B": "3", "C": "4"}
    assert environment["TF_CONFIG"] == "{}"
