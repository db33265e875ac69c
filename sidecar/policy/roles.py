"""What this node is to the training job: its role (never evaluate on the chief), its name, its address.

Read once at start-up, from the settings and the environment that launchers leave. A hint is asked only where no setting
answers, so a setting also overrides a hint that cannot be understood. `decide_role` and `node_name` look at their
arguments only. Imports no framework: TF_CONFIG is read as TensorFlow's resolver would, without it.
"""

import ipaddress
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from sidecar.errors import SettingsError
from sidecar.settings import check_host, check_name

if TYPE_CHECKING:
    from sidecar.records import Role
    from sidecar.settings import Settings

CHIEF_TYPES: Final = ("chief", "master")
TASK_TYPES: Final = (*CHIEF_TYPES, "worker", "ps", "evaluator")

NO_HINT: Final = "no sign of a distributed job"
"""The source of a role that nothing in the settings or the environment decides."""

_SET_ROLE: Final = "--role worker or --role chief (SIDECAR_ROLE, or role in the file)"
EVAL_PORTS_REMEDY: Final = (
    "whoever reaches a worker's port can run code in it, since TensorFlow's server asks for no password, and it "
    "listens on every address of the machine, whatever --host says; let a firewall keep port_range to the nodes of the "
    "eval group: docs/how-to/firewall.md has a rule"
)

_HIDDEN_IN: Final[Mapping[str, str]] = {"NOTIFY_SOCKET": "systemd", "KUBERNETES_SERVICE_HOST": "Kubernetes"}


@dataclass(frozen=True, slots=True)
class RoleDecision:
    """The role, the hint it came from, what may be wrong with it (null: nothing), and how to override it."""

    role: "Role"
    source: str
    warning: str | None = None

    @property
    def remedy(self) -> str:
        """How to override the hint, for the log."""
        if self.role == "chief":
            return "to evaluate on this node anyway, give --role worker (SIDECAR_ROLE=worker)"
        return "if this node should not evaluate, name it in chief_nodes"


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """This process in the training job's cluster, as TF_CONFIG tells it. `address` is None for an evaluator outside."""

    type: str
    index: int
    address: str | None
    has_chief: bool  # whether the cluster names a chief or master
    alone: bool  # whether it is the cluster's only task

    @property
    def name(self) -> str:
        """As it is written: `worker:1`."""
        return f"{self.type}:{self.index}"


def decide_role(settings: "Settings", node: str, environ: Mapping[str, str]) -> RoleDecision:
    """Decide whether this node may evaluate; the first hint wins. Without any, training runs on one machine: this one.

    Raises `SettingsError` for a hint that cannot be understood, and for none where a launcher may hide it.
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
                f"cannot tell whether the training job's chief runs on node {node!r}: under {place} ({variable} is "
                f"set) the job's TF_CONFIG is not visible to this daemon; give {_SET_ROLE}, or list the chief's nodes "
                "in chief_nodes (SIDECAR_CHIEF_NODES), which can be the same on every node; where training runs on one "
                "machine, give --role worker"
            )
    return RoleDecision("worker", NO_HINT)


def node_name(
    settings: "Settings", environ: Mapping[str, str], *, hostname: Callable[[], str] = socket.gethostname
) -> str:
    """This node's name among the daemons: `node`, else TF_CONFIG's task (`worker-1`), else the host name."""
    if settings.node is not None:
        return settings.node
    if task := _read_tf_config(environ, "--node NAME (SIDECAR_NODE, or node in the file)"):
        return f"{task.type}-{task.index}"
    try:
        return check_name(hostname())
    except ValueError as error:
        raise SettingsError(f"host name as node name: {error}; or give --node NAME (SIDECAR_NODE)") from error


def own_address() -> str:
    """The address that this host's routes would send from, in brackets if IPv6; 127.0.0.1 without any network.

    Never waits and never asks DNS: connecting a datagram socket sends nothing, it only picks a route. Hosts without a
    default route, such as compute nodes of a cluster, fall back to their first interface's address.
    """
    # Addresses reserved for documentation: never a neighbour, so the default route answers.
    for family, beyond in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((beyond, 9))
                return check_host(probe.getsockname()[0])
        except (OSError, ValueError):  # no such route, no such family, or nothing but `::`
            continue
    return _first_interface_address() or "127.0.0.1"


def advertised_host(settings: "Settings", environ: Mapping[str, str], *, own: Callable[[], str] = own_address) -> str:
    """Where other nodes reach this one's workers, ready for `:PORT`: `host`, else TF_CONFIG's, else the host's own."""
    if settings.host is not None:
        return settings.host
    remedy = "--host HOST (SIDECAR_HOST, or host in the file)"
    task = _read_tf_config(environ, remedy)
    if task is None or task.address is None:
        return own()
    host, colon, _ = task.address.rpartition(":")
    try:
        return check_host(host if colon else task.address)
    except ValueError as error:
        raise SettingsError(
            f"TF_CONFIG: task {task.name}, address {task.address!r}: {error}; or give {remedy}"
        ) from error


def public_address(host: str, *, resolve: bool = True) -> str | None:
    """The address that `host` names, if it is one of the internet's; names are looked up only if `resolve`."""
    flags = 0 if resolve else socket.AI_NUMERICHOST
    try:
        answers = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM, flags=flags)
    except OSError:  # a name that nobody knows, nobody reaches
        return None
    addresses = (str(answer[4][0]).partition("%")[0] for answer in answers)
    return next((address for address in addresses if ipaddress.ip_address(address).is_global), None)


def _from_chief_nodes(patterns: tuple[str, ...], node: str, environ: Mapping[str, str]) -> RoleDecision:
    for pattern in patterns:
        if fnmatchcase(node, pattern):
            return RoleDecision("chief", f"chief_nodes pattern {pattern!r}")
    try:
        doubt = _from_environment(environ)
    except SettingsError:
        doubt = None  # already overridden
    warning = None
    if doubt and doubt.role == "chief":
        # A likely slip: chief_nodes lists host names, while TF_CONFIG made this node's name `chief-0`.
        warning = f"chief_nodes does not name node {node!r}, but {doubt.source} says that the chief runs here"
    return RoleDecision("worker", f"chief_nodes {', '.join(patterns)}: none matches", warning)


def _from_environment(environ: Mapping[str, str]) -> RoleDecision | None:
    return _from_tf_config(environ) or _from_torchrun(environ) or _from_slurm(environ)


def _from_tf_config(environ: Mapping[str, str]) -> RoleDecision | None:
    task = _read_tf_config(environ, _SET_ROLE)
    if task is None or task.alone:
        return None  # a job of one says nothing about who else evaluates
    source = f"TF_CONFIG task {task.name}"
    if task.type == "ps":
        return RoleDecision("chief", f"{source} (a parameter server never evaluates)")
    if task.type in CHIEF_TYPES:
        return RoleDecision("chief", source)
    if task.type == "worker" and task.index == 0 and not task.has_chief:
        return RoleDecision("chief", f"{source} (worker 0 is the chief of a cluster that names none)")
    return RoleDecision("worker", source)


def _from_torchrun(environ: Mapping[str, str]) -> RoleDecision | None:
    variable = next((name for name in ("GROUP_RANK", "NODE_RANK", "RANK") if name in environ), None)
    if variable is None or "MASTER_ADDR" not in environ or "WORLD_SIZE" not in environ:
        return None
    return _by_rank(environ, variable, "WORLD_SIZE")


def _from_slurm(environ: Mapping[str, str]) -> RoleDecision | None:
    if "SLURM_NODEID" not in environ or "SLURM_NNODES" not in environ:
        return None
    return _by_rank(environ, "SLURM_NODEID", "SLURM_NNODES")


def _by_rank(environ: Mapping[str, str], rank: str, size: str) -> RoleDecision | None:
    for variable in (rank, size):
        if not (environ[variable].isascii() and environ[variable].isdecimal()):
            raise SettingsError(
                f"environment {variable}: {environ[variable]!r} is no count; correct it, or give {_SET_ROLE}"
            )
    if int(environ[size]) <= 1:
        return None  # a job of one says nothing about who else evaluates
    return RoleDecision("chief" if int(environ[rank]) == 0 else "worker", f"{rank}={environ[rank]}")


def _read_tf_config(environ: Mapping[str, str], remedy: str) -> ClusterTask | None:
    """This task as TF_CONFIG tells it; null if it is unset, empty or `{}`, which TensorFlow takes for no cluster."""
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        parsed = json.loads(text)
        return None if parsed == {} else _find_task(parsed)
    except (ValueError, RecursionError) as error:  # JSON's own says line and column
        raise SettingsError(f"TF_CONFIG: {error}; correct it, or give {remedy}. It is {_shown(text)}") from error


def _find_task(parsed: Any) -> ClusterTask:
    """The `task` of parsed TF_CONFIG, looked up in its `cluster`; raises `ValueError` for the first misfit."""
    cluster = _member(parsed, "cluster", "TF_CONFIG")
    jobs = {job: _addresses(job, tasks) for job, tasks in cluster.items()}
    task = _member(parsed, "task", "TF_CONFIG")
    kind, index = task.get("type"), task.get("index")
    if kind not in TASK_TYPES:
        raise ValueError(f"task.type is {_shown(kind)}: one of {', '.join(TASK_TYPES)} is expected")
    number = _whole(index)
    if number is None:
        raise ValueError(f"task.index is {_shown(index)}: a number from 0 is expected")
    addresses = jobs.get(kind, {})
    # An evaluator is usually no part of the cluster: it takes no part in training.
    if number not in addresses and not (kind == "evaluator" and not addresses):
        known = ", ".join(map(str, sorted(addresses))) or "none"
        raise ValueError(f"task {kind}:{number} is not in cluster.{kind}, which has index {known}")
    has_chief = any(jobs.get(chief) for chief in CHIEF_TYPES)
    alone = number in addresses and sum(map(len, jobs.values())) == 1
    return ClusterTask(kind, number, addresses.get(number), has_chief, alone)


def _member(parent: Any, key: str, name: str) -> Mapping[str, Any]:
    if not isinstance(parent, dict):
        raise ValueError(f"{name} is {_shown(parent)}: an object is expected")  # noqa: TRY004 - one kind of error here
    if key not in parent:
        raise ValueError(f"{key} is missing: an object is expected")
    found = parent[key]
    if not isinstance(found, dict):
        raise ValueError(f"{key} is {_shown(found)}: an object is expected")  # noqa: TRY004 - as above
    return found


def _addresses(job: str, tasks: Any) -> dict[int, str]:
    """Addresses of one job by index: a list or an object by index; `tf.train.ClusterSpec` takes both."""
    pairs = enumerate(tasks) if isinstance(tasks, list) else tasks.items() if isinstance(tasks, dict) else None
    if pairs is None:
        raise ValueError(f"cluster.{job} is {_shown(tasks)}: a list of HOST:PORT is expected")
    found: dict[int, str] = {}
    for index, address in pairs:
        number = _whole(index)
        if number is None or not isinstance(address, str) or not address:
            raise ValueError(
                f"cluster.{job}[{index}] is {_shown(address)}: HOST:PORT is expected under a number from 0"
            )
        found[number] = address
    return found


def _whole(value: Any) -> int | None:
    """A number from 0; some launchers write it as a string, and TensorFlow's resolver takes both."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _first_interface_address() -> str | None:
    """The first IPv4 address of an interface that is not loopback: netdevice(7), SIOCGIFADDR."""
    import fcntl  # noqa: PLC0415 - Linux only, and only without a default route

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            try:
                # struct ifreq: 16 bytes of name, then a sockaddr_in with the address in its bytes 4 to 8
                request = fcntl.ioctl(probe, 0x8915, interface.encode().ljust(40, b"\0"))
            except OSError:
                continue  # no IPv4 here
            address = socket.inet_ntoa(request[20:24])
            if not address.startswith("127."):
                return address
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:199]}…"  # noqa: PLR2004 - a cluster of a thousand is no message
