"""Read the role of a process out of TF_CONFIG, and show where a malformed one breaks."""

import json

import pytest

from sidecar.errors import SettingsError
from sidecar.policy.node_identity import advertised_host, node_name
from sidecar.policy.roles import decide_role
from sidecar.settings import Settings

CHIEF_AND_WORKERS = {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222", "10.0.0.3:2222"]}

MASTER_AND_WORKER = {"master": ["a:1"], "worker": ["b:1"]}

WORKERS = {"worker": ["10.0.0.2:2222", "10.0.0.3:2222"]}

WITH_PS = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}


def settings(**given):
    return Settings(checkpoint_dir="/data/run", **given)


def tf_config(cluster, task, index):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task, "index": index}})}


TF_CONFIGS = [
    (CHIEF_AND_WORKERS, "chief", 0, "chief", "TF_CONFIG task chief:0"),
    (CHIEF_AND_WORKERS, "worker", 0, "worker", "TF_CONFIG task worker:0"),
    (CHIEF_AND_WORKERS, "worker", 1, "worker", "TF_CONFIG task worker:1"),
    (CHIEF_AND_WORKERS, "worker", "1", "worker", "TF_CONFIG task worker:1"),
    (CHIEF_AND_WORKERS, "evaluator", 0, "worker", "TF_CONFIG task evaluator:0"),
    (MASTER_AND_WORKER, "master", 0, "chief", "TF_CONFIG task master:0"),
    (MASTER_AND_WORKER, "worker", 0, "worker", "TF_CONFIG task worker:0"),
    (WORKERS, "worker", 0, "chief", "TF_CONFIG task worker:0 (worker 0 is the chief of a cluster that names none)"),
    (WORKERS, "worker", 1, "worker", "TF_CONFIG task worker:1"),
    ({"chief": [], **WORKERS}, "worker", 0, "chief", "(worker 0 is the chief of a cluster that names none)"),
    (WITH_PS, "ps", 0, "chief", "TF_CONFIG task ps:0 (a parameter server never evaluates)"),
    (WITH_PS, "worker", 0, "chief", "(worker 0 is the chief of a cluster that names none)"),
    (WITH_PS, "worker", 1, "worker", "TF_CONFIG task worker:1"),
    ({"worker": {"1": "b:1"}, "chief": ["a:1"]}, "worker", 1, "worker", "TF_CONFIG task worker:1"),
    ({"evaluator": ["e:1"], **WORKERS}, "evaluator", 0, "worker", "TF_CONFIG task evaluator:0"),
]


@pytest.mark.parametrize(("cluster", "task", "index", "role", "source"), TF_CONFIGS)
def test_tf_config_tells_the_role(cluster, task, index, role, source):
    """Chief, master, the first worker of a cluster without them, and parameter servers do not evaluate."""
    decision = decide_role(settings(), "any", tf_config(cluster, task, index))
    assert decision.role == role
    assert decision.source.endswith(source)
    assert decision.warning is None


MALFORMED = [
    ("{", "line 1 column 2"),
    ("worker", "line 1 column 1"),
    ("[]", "TF_CONFIG is []: an object is expected"),
    ("3", "TF_CONFIG is 3: an object is expected"),
    ("null", "TF_CONFIG is None: an object is expected"),
    ("[" * 100_000, "recursion"),
    ('{"task": {"type": "worker", "index": 0}}', "cluster is missing"),
    ('{"cluster": [], "task": {"type": "worker", "index": 0}}', "cluster is []"),
    ('{"cluster": {"worker": ["a:1"]}}', "task is missing"),
    ('{"cluster": {"worker": ["a:1"]}, "task": "worker"}', "task is 'worker'"),
    ('{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}', "cluster.worker is 'a:1': a list"),
    ('{"cluster": {"worker": [1]}, "task": {"type": "worker", "index": 0}}', "cluster.worker[0] is 1: HOST:PORT"),
    ('{"cluster": {"worker": [""]}, "task": {"type": "worker", "index": 0}}', "cluster.worker[0] is '': HOST:PORT"),
    ('{"cluster": {"worker": {"x": "a:1"}}, "task": {"type": "worker", "index": 0}}', "cluster.worker[x]"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}', "task.type is None: one of chief, master, worker"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "boss", "index": 0}}', "task.type is 'boss': one of chief"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": ["worker"], "index": 0}}', "task.type is ['worker']"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}', "task.index is None: a number from 0"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}', "task.index is 'x'"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": true}}', "task.index is True"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}', "task.index is -1"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "task worker:1 is not in cluster"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}', "which has index none"),
    ('{"cluster": {"evaluator": ["a:1"]}, "task": {"type": "evaluator", "index": 2}}', "task evaluator:2 is not in"),
]


@pytest.mark.parametrize(("text", "said"), MALFORMED, ids=[text[:70] for text, _ in MALFORMED])
@pytest.mark.parametrize(
    ("ask", "remedy"),
    [
        (lambda environ: decide_role(settings(), "a", environ), "--role worker or --role chief"),
        (lambda environ: node_name(settings(), environ), "--node NAME"),
        (lambda environ: advertised_host(settings(), environ), "--host HOST"),
    ],
    ids=["role", "node", "host"],
)
def test_a_malformed_tf_config_shows_where_it_breaks(text, said, ask, remedy):
    """The message has the place, the whole value up to a limit, and the option that does without it."""
    with pytest.raises(SettingsError) as caught:
        ask({"TF_CONFIG": text})
    message = str(caught.value)
    assert message.startswith("TF_CONFIG: ")
    assert said in message
    assert f"correct it, or give {remedy}" in message
    assert repr(text)[:150] in message
    assert len(message) < 600


def test_a_malformed_tf_config_does_not_matter_to_what_is_set():
    """Each question looks at TF_CONFIG only if its own setting is missing."""
    broken = {"TF_CONFIG": "{"}
    assert decide_role(settings(role="worker"), "a", broken).role == "worker"
    assert node_name(settings(node="a"), broken) == "a"
    assert advertised_host(settings(host="10.0.0.9"), broken) == "10.0.0.9"
