"""Decide this node's role. A node on which the training job's chief runs never evaluates.

This happens once at start-up, from the settings and the environment variables of launchers. The environment is read
only if no setting decides, so a setting also overrides a hint that cannot be understood. No I/O.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from sidecar.errors import SettingsError
from sidecar.policy.tf_config import CHIEF_TYPES, read_tf_config

if TYPE_CHECKING:
    from sidecar.protocol.records import Role
    from sidecar.settings import Settings

NO_HINT: Final = "no sign of a distributed job"
"""The source of a role that neither the settings nor the environment decide."""

_SET_ROLE: Final = "--role worker or --role chief (SIDECAR_ROLE, or role in the file)"
_HIDDEN_IN: Final[Mapping[str, str]] = {"NOTIFY_SOCKET": "systemd", "KUBERNETES_SERVICE_HOST": "Kubernetes"}


@dataclass(frozen=True, slots=True)
class RoleDecision:
    """Hold a role, its source, and a warning if the source is doubtful."""

    role: "Role"
    source: str
    warning: str | None = None

    @property
    def remedy(self) -> str:
        """Return how to override the hint, for the log."""
        if self.role == "chief":
            return "to evaluate on this node anyway, give --role worker (SIDECAR_ROLE=worker)"
        return "if this node should not evaluate, name it in chief_nodes"


def decide_role(settings: "Settings", node: str, environ: Mapping[str, str]) -> RoleDecision:
    """Decide whether this node may evaluate, by the first hint. Without any hint, training runs on this machine only.

    Raises `SettingsError` for a hint that cannot be understood, and if there is none but a launcher may hide it.
    """
    if settings.role is not None:
        return RoleDecision(settings.role, f"role = {settings.role}")
    if settings.chief_nodes:
        return _from_chief_nodes(settings.chief_nodes, node, environ)
    if decision := _from_environment(environ):
        return decision
    for variable, place in _HIDDEN_IN.items():
        if variable in environ:
            raise SettingsError(
                f"it is unknown whether the training job's chief runs on node {node!r}: under {place} ({variable} is "
                f"set) the job's TF_CONFIG is not visible to this daemon; give {_SET_ROLE}, or list the chief's nodes "
                "in chief_nodes (SIDECAR_CHIEF_NODES), which can be the same on every node; if training runs on one "
                "machine, give --role worker"
            )
    return RoleDecision("worker", NO_HINT)


def _from_chief_nodes(patterns: tuple[str, ...], node: str, environ: Mapping[str, str]) -> RoleDecision:
    """Return the role by the setting chief_nodes, with a warning if the environment contradicts it."""
    for pattern in patterns:
        if fnmatchcase(node, pattern):
            return RoleDecision("chief", f"chief_nodes pattern {pattern!r}")
    try:
        doubt = _from_environment(environ)
    except SettingsError:
        doubt = None  # already overridden
    warning = None
    if doubt and doubt.role == "chief":
        # A common mistake: chief_nodes lists host names, but TF_CONFIG made this node's name `chief-0`.
        warning = f"chief_nodes does not name node {node!r}, but {doubt.source} says that the chief runs here"
    return RoleDecision("worker", f"chief_nodes {', '.join(patterns)}: none matches", warning)


def _from_environment(environ: Mapping[str, str]) -> RoleDecision | None:
    """Return the role by the first hint in the environment; None if there is none."""
    return _from_tf_config(environ) or _from_torchrun(environ) or _from_slurm(environ)


def _from_tf_config(environ: Mapping[str, str]) -> RoleDecision | None:
    """Return the role by TF_CONFIG; None if it does not decide."""
    task = read_tf_config(environ, _SET_ROLE)
    if task is None or task.alone:
        return None  # a job with one task does not show which other nodes evaluate
    source = f"TF_CONFIG task {task.name}"
    if task.type == "ps":
        return RoleDecision("chief", f"{source} (a parameter server never evaluates)")
    if task.type in CHIEF_TYPES:
        return RoleDecision("chief", source)
    if task.type == "worker" and task.index == 0 and not task.has_chief:
        return RoleDecision("chief", f"{source} (worker 0 is the chief of a cluster that names none)")
    return RoleDecision("worker", source)


def _from_torchrun(environ: Mapping[str, str]) -> RoleDecision | None:
    """Return the role by the variables of PyTorch's launchers; None if they are not set.

    torchrun numbers and counts nodes, and so does Kubeflow's operator for it (PET_…). Lightning, accelerate and scripts
    set the number of a node or of a process next to the number of processes. With LOCAL_WORLD_SIZE, that of nodes
    follows.
    """
    for rank, size in (("GROUP_RANK", "GROUP_WORLD_SIZE"), ("PET_NODE_RANK", "PET_NNODES")):
        if rank in environ and size in environ:
            return _by_rank(environ, rank, size)
    variable = next((name for name in ("GROUP_RANK", "NODE_RANK", "RANK") if name in environ), None)
    if variable is None or "MASTER_ADDR" not in environ or "WORLD_SIZE" not in environ:
        return None
    if environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]:
        return None  # all processes are on one node
    return _by_rank(environ, variable, "WORLD_SIZE")


def _from_slurm(environ: Mapping[str, str]) -> RoleDecision | None:
    """Return the role by the variables of Slurm; None if they are not set.

    The chief is the first node of the job, or of the first component of a heterogeneous job. SLURM_NODEID counts the
    nodes of a step, which may be others, so it decides only if the node's name is missing.
    """
    of_component = "SLURM_JOB_NODELIST_HET_GROUP_0"
    variable = of_component if of_component in environ else "SLURM_JOB_NODELIST"
    if "SLURMD_NODENAME" in environ and variable in environ:
        node, nodes = environ["SLURMD_NODENAME"], environ[variable]
        first = first_host(nodes)
        if first is None:
            raise SettingsError(f"environment {variable}: {nodes!r} is not a list of nodes; give {_SET_ROLE}")
        if first == nodes and variable != of_component:
            return None  # a job of one node does not show which other nodes evaluate
        return RoleDecision("chief" if node == first else "worker", f"SLURMD_NODENAME={node} of {variable}={nodes}")
    if "SLURM_NODEID" not in environ or "SLURM_NNODES" not in environ:
        return None
    return _by_rank(environ, "SLURM_NODEID", "SLURM_NNODES")


def _by_rank(environ: Mapping[str, str], rank: str, size: str) -> RoleDecision | None:
    """Return the role by variables with this process's rank and the size of the job: rank 0 is the chief."""
    count = environ[size].rpartition(":")[2]  # an elastic job may have 1:4 nodes
    for variable, number in ((rank, environ[rank]), (size, count)):
        if not (number.isascii() and number.isdecimal()):
            raise SettingsError(
                f"environment {variable}: {environ[variable]!r} is not a number from 0; correct it, or give {_SET_ROLE}"
            )
    if int(count) <= 1:
        return None  # a job with one task does not show which other nodes evaluate
    return RoleDecision("chief" if int(environ[rank]) == 0 else "worker", f"{rank}={environ[rank]}")


_NAME: Final = r"(?:[^\[\],\s]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])++"
_LIST: Final = re.compile(rf"({_NAME})(?:,{_NAME})*+")
_BRACKET: Final = re.compile(r"\[([0-9]+)[^\]]*\]")
"""The lists of nodes that Slurm writes into variables, such as `gpu-a[01-12,20],login`, as `scontrol show hostnames`
reads them: names with commas between them, and in a name any number of brackets with numbers and ranges of numbers."""


def first_host(nodes: str) -> str | None:
    """Return the first name of a list, which is the list itself if it has one name; None if it is not a list."""
    found = _LIST.fullmatch(nodes)
    return None if found is None else _BRACKET.sub(r"\1", found[1])
