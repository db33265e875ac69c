"""Derive the role of a process from settings and launchers."""

import json

import pytest

from sidecar.errors import SettingsError
from sidecar.policy.roles import NO_HINT, decide_role, first_host
from sidecar.settings import Settings

CHIEF_AND_WORKERS = {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222", "10.0.0.3:2222"]}


def settings(**given):
    return Settings(checkpoint_dir="/data/run", **given)


def tf_config(cluster, task, index):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task, "index": index}})}


def torchrun(**given):
    return {"MASTER_ADDR": "10.0.0.1", "WORLD_SIZE": "4"} | given


def slurm(node, nodes, *, step, **more):
    number, count = step
    given = {"SLURMD_NODENAME": node, "SLURM_JOB_NODELIST": nodes}
    return given | {"SLURM_NODEID": str(number), "SLURM_NNODES": str(count)} | more


IS_CHIEF = tf_config(CHIEF_AND_WORKERS, "chief", 0)

IS_WORKER = tf_config(CHIEF_AND_WORKERS, "worker", 1)

LAUNCHERS = [
    (torchrun(GROUP_RANK="0", RANK="2"), "chief", "GROUP_RANK=0"),
    (torchrun(GROUP_RANK="1", RANK="0"), "worker", "GROUP_RANK=1"),
    (torchrun(NODE_RANK="0", RANK="1"), "chief", "NODE_RANK=0"),
    (torchrun(NODE_RANK="2", RANK="0"), "worker", "NODE_RANK=2"),
    (torchrun(RANK="0"), "chief", "RANK=0"),
    (torchrun(GROUP_RANK="0", GROUP_WORLD_SIZE="2"), "chief", "GROUP_RANK=0"),
    (torchrun(GROUP_RANK="1", GROUP_WORLD_SIZE="2", LOCAL_WORLD_SIZE="2"), "worker", "GROUP_RANK=1"),
    ({"PET_NODE_RANK": "0", "PET_NNODES": "1:4", "RANK": "0"}, "chief", "PET_NODE_RANK=0"),
    ({"PET_NODE_RANK": "2", "PET_NNODES": "3"}, "worker", "PET_NODE_RANK=2"),
    (torchrun(RANK="1", LOCAL_WORLD_SIZE="1"), "worker", "RANK=1"),
    (torchrun(RANK="3"), "worker", "RANK=3"),
    ({"SLURM_NODEID": "0", "SLURM_NNODES": "2"}, "chief", "SLURM_NODEID=0"),
    ({"SLURM_NODEID": "1", "SLURM_NNODES": "2"}, "worker", "SLURM_NODEID=1"),
    (slurm("n0", "n[0-2]", step=(0, 3)), "chief", "SLURMD_NODENAME=n0 of SLURM_JOB_NODELIST=n[0-2]"),
    (slurm("n1", "n[0-2]", step=(0, 2)), "worker", "SLURMD_NODENAME=n1 of SLURM_JOB_NODELIST=n[0-2]"),
    (slurm("n0", "n[0-2]", step=(0, 1)), "chief", "SLURMD_NODENAME=n0 of SLURM_JOB_NODELIST=n[0-2]"),
    (
        slurm("n0", "n0", step=(0, 1), SLURM_JOB_NODELIST_HET_GROUP_0="n0"),
        "chief",
        "SLURMD_NODENAME=n0 of SLURM_JOB_NODELIST_HET_GROUP_0=n0",
    ),
    (
        slurm("n1", "n[1-2]", step=(0, 2), SLURM_JOB_NODELIST_HET_GROUP_0="n0"),
        "worker",
        "SLURMD_NODENAME=n1 of SLURM_JOB_NODELIST_HET_GROUP_0=n0",
    ),
]
"""Those of Slurm were printed by steps of a job on four nodes: all nodes, the second and third one, the first one."""


@pytest.mark.parametrize(("environ", "role", "source"), LAUNCHERS)
def test_a_launcher_tells_the_role(environ, role, source):
    """Nodes are numbered by torchrun and by Slurm; the first rank that is present decides."""
    decision = decide_role(settings(), "any", environ)
    assert (decision.role, decision.source, decision.warning) == (role, source, None)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": " {} "},
        torchrun(),
        torchrun(RANK="0", WORLD_SIZE="1"),
        {"RANK": "0", "WORLD_SIZE": "4"},
        {"RANK": "0", "MASTER_ADDR": "a"},
        torchrun(GROUP_RANK="0", GROUP_WORLD_SIZE="1", RANK="1", LOCAL_WORLD_SIZE="4"),  # torchrun on one node
        torchrun(RANK="0", LOCAL_WORLD_SIZE="4"),
        {"PET_NODE_RANK": "0", "PET_NNODES": "1", "MASTER_ADDR": "a"},
        {"SLURM_NODEID": "0", "SLURM_NNODES": "1"},
        {"SLURM_NODEID": "0"},
        slurm("n0", "n0", step=(0, 1)),
        {"SLURM_JOB_NODELIST": "n[0-2]"},  # a shell of salloc
        {"TF_CONFIG": '{"cluster": {"chief": ["h:1"]}, "task": {"type": "chief", "index": 0}}'},
        {"TF_CONFIG": '{"cluster": {"worker": ["h:1"], "ps": []}, "task": {"type": "worker", "index": 0}}'},
    ],
)
def test_one_machine_evaluates_without_a_warning(environ):
    """A job of one task says nothing of another node that could evaluate, so this one does, and nothing is doubted."""
    decision = decide_role(settings(), "node-3", environ)
    assert (decision.role, decision.source, decision.warning) == ("worker", NO_HINT, None)
    assert "--role chief" not in decision.remedy


def test_a_lone_chief_with_an_evaluator_is_the_chief():
    """Somebody else evaluates there."""
    cluster = {"chief": ["h:1"], "evaluator": ["h:2"]}
    text = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    assert decide_role(settings(), "n", {"TF_CONFIG": text}).role == "chief"


@pytest.mark.parametrize(
    ("variable", "place"), [("NOTIFY_SOCKET", "systemd"), ("KUBERNETES_SERVICE_HOST", "Kubernetes")]
)
def test_no_hint_where_one_may_be_hidden_is_refused(variable, place):
    """A service manager hides the job's environment, so guessing could evaluate on the chief."""
    with pytest.raises(SettingsError) as caught:
        decide_role(settings(), "node-3", {variable: "x"})
    for part in ("'node-3'", place, variable, "TF_CONFIG", "--role worker", "SIDECAR_ROLE", "chief_nodes"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("given", "environ"),
    [({"role": "worker"}, {}), ({"chief_nodes": ["n*"]}, {}), ({}, IS_WORKER), ({}, torchrun(RANK="1"))],
)
@pytest.mark.parametrize("variable", ["NOTIFY_SOCKET", "KUBERNETES_SERVICE_HOST"])
def test_any_hint_is_enough_under_a_service_manager(given, environ, variable):
    """The refusal is for the absence of hints only."""
    assert decide_role(settings(**given), "node-3", environ | {variable: "x"}).source != NO_HINT


def test_hints_count_in_order():
    """Each hint beats all that come after it, which say the opposite here."""
    hints = [
        ({"role": "worker"}, {}, "worker", "role = worker"),
        ({"chief_nodes": ["x", "node-0*"]}, {}, "chief", "chief_nodes pattern 'node-0*'"),
        ({}, IS_WORKER, "worker", "TF_CONFIG task worker:1"),
        ({}, torchrun(GROUP_RANK="0"), "chief", "GROUP_RANK=0"),
        ({}, {"SLURM_NODEID": "1", "SLURM_NNODES": "2"}, "worker", "SLURM_NODEID=1"),
    ]
    for first in range(len(hints)):
        given = {key: value for hint in hints[first:] for key, value in hint[0].items()}
        environ = {key: value for hint in hints[first:] for key, value in hint[1].items()}
        decision = decide_role(settings(**given), "node-01", environ)
        assert (decision.role, decision.source) == hints[first][2:]


@pytest.mark.parametrize(
    ("patterns", "node", "role"),
    [
        (["node-0"], "node-0", "chief"),
        (["node-0"], "node-01", "worker"),
        (["node-0*"], "node-01", "chief"),
        (["a", "node-[01]"], "node-1", "chief"),
        (["NODE-0"], "node-0", "worker"),
    ],
)
def test_chief_nodes_are_names_or_globs(patterns, node, role):
    """One list serves all nodes; case counts, as in node names."""
    decision = decide_role(settings(chief_nodes=patterns), node, {})
    assert decision.role == role
    assert decision.source.startswith("chief_nodes")
    assert decision.warning is None


def test_chief_nodes_that_miss_the_chief_are_doubted():
    """A list of host names does not match a node that TF_CONFIG named `chief-0`: the hint wins, a warning tells."""
    decision = decide_role(settings(chief_nodes=["gpu-host-0"]), "chief-0", IS_CHIEF)
    assert decision.role == "worker"
    assert "'chief-0'" in decision.warning
    assert "TF_CONFIG task chief:0" in decision.warning


def test_chief_nodes_override_a_broken_tf_config():
    """A broken TF_CONFIG is not read if chief_nodes, which is the stronger hint, decides the role."""
    decision = decide_role(settings(chief_nodes=["a"]), "b", {"TF_CONFIG": "{"})
    assert (decision.role, decision.warning) == ("worker", None)


def test_the_remedy_overrides_the_decision():
    """The log of an idle node says how to make it work."""
    chief = decide_role(settings(), "a", IS_CHIEF)
    assert "--role worker" in chief.remedy
    assert decide_role(settings(role="worker"), "a", IS_CHIEF).role == "worker"


@pytest.mark.parametrize(
    ("environ", "value", "variable"),
    [
        (torchrun(RANK="first"), "'first'", "RANK"),
        (torchrun(RANK="-1"), "'-1'", "RANK"),
        (torchrun(RANK="0", WORLD_SIZE="many"), "'many'", "WORLD_SIZE"),
        ({"SLURM_NODEID": "", "SLURM_NNODES": "2"}, "''", "SLURM_NODEID"),
        ({"SLURM_NODEID": "0", "SLURM_NNODES": "2(x2)"}, "'2(x2)'", "SLURM_NNODES"),
    ],
)
def test_a_rank_that_is_no_number_is_refused(environ, value, variable):
    """A launcher's variable that cannot be read is no proof of being a worker."""
    with pytest.raises(SettingsError) as caught:
        decide_role(settings(), "a", environ)
    assert f"environment {variable}: {value} is not a number" in str(caught.value)
    assert "--role worker or --role chief" in str(caught.value)


def test_a_list_of_nodes_that_was_cut_off_is_refused():
    """A node that is not found in it might be the first one all the same."""
    with pytest.raises(SettingsError) as caught:
        decide_role(settings(), "a", slurm("n1", "n[0-", step=(0, 2)))
    assert "SLURM_JOB_NODELIST: 'n[0-'" in str(caught.value)
    assert "--role worker or --role chief" in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n0", "n0"),
        ("n[0-3,7]", "n0"),
        ("n[3,7-9]", "n3"),
        ("gpu-a[01-12]", "gpu-a01"),
        ("login,gpu[1-2]", "login"),
        ("gpu[1-2],login", "gpu1"),
        ("n[1-2]-ib,x[3-4]", "n1-ib"),
        ("r[1-2]n[03-04]", "r1n03"),
        ("a.example.com", "a.example.com"),
        ("n[0-100000]", "n0"),
    ],
)
def test_the_first_name_of_a_list(nodes, first):
    """A list may have groups in brackets, suffixes and several dimensions; digits keep their zeros."""
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    "nodes", ["", ",", "a,", "a,,b", "n[0", "n[]", "n[a]", "n[1-]", "n[0-2]]", "n 0", "n[0-1", "a]", "(null) x"]
)
def test_other_text_is_not_a_list(nodes):
    """Nothing is guessed from a list that was cut off."""
    assert first_host(nodes) is None


@pytest.mark.timeout(10)
@pytest.mark.parametrize("text", ["n[", "n[1,", "a,", "[1-2]", "n[1]", "1,1"])
def test_a_hostile_list_takes_no_time(text):
    """100,000 repetitions are read once, from left to right."""
    first_host(text * 100_000)
