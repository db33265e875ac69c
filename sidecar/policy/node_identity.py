"""Decide this node's name among the daemons, and the address under which other nodes reach its workers.

This happens once at start-up, by a setting, else the training job's TF_CONFIG, else Slurm's name of the node, else the
host's own name and address.
"""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.errors import SettingsError
from sidecar.policy.roles import RoleDecision
from sidecar.policy.tf_config import read_tf_config
from sidecar.protocol.export_rule import ExportRule
from sidecar.settings import check_host, check_name
from sidecar.system.addresses import dialled, is_loopback, outgoing_address

if TYPE_CHECKING:
    from sidecar.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Hold the names and the role of one daemon."""

    run: str  # the run's name, as it stands in labels
    node: str
    incarnation: str
    version: str  # for people
    evaluation_code: str | None = None  # digest of the code that makes numbers
    role: RoleDecision
    exports: ExportRule | None = None  # by which the settings export checkpoints; other nodes respect it
    page_url: str | None = None  # of the status page, for the other nodes' pages

    @property
    def workers(self) -> str:
        """Return the prefix of the names of this daemon's workers, which is unique for all time."""
        return f"{self.node}.{self.incarnation}"


def node_name(
    settings: "Settings", environ: Mapping[str, str], *, hostname: Callable[[], str] = socket.gethostname
) -> str:
    """Return this node's name: `node`, else TF_CONFIG's task (`worker-1`), else Slurm's, else the host's.

    Raises `SettingsError` for a TF_CONFIG or a name that cannot be used.
    """
    if settings.node is not None:
        return settings.node
    if task := read_tf_config(environ, "--node NAME (SIDECAR_NODE, or node in the file)"):
        return f"{task.type}-{task.index}"
    slurm = environ.get("SLURMD_NODENAME")
    try:
        return check_name(slurm or hostname())
    except ValueError as error:
        source = "SLURMD_NODENAME" if slurm else "host name"
        raise SettingsError(f"{source} as node name: {error}; or give --node NAME (SIDECAR_NODE)") from error


def advertised_host(
    settings: "Settings", environ: Mapping[str, str], *, own: Callable[[], str] = outgoing_address
) -> str:
    """Return the address of this node's workers, ready for `:PORT`: `host`, else TF_CONFIG's, else the host's own.

    Raises `SettingsError` for a TF_CONFIG that cannot be used.
    """
    if settings.host is not None:
        return settings.host
    remedy = "--host HOST (SIDECAR_HOST, or host in the file)"
    task = read_tf_config(environ, remedy)
    if task is None or task.address is None:
        return own()
    host, colon, _ = task.address.rpartition(":")
    try:
        return check_host(host if colon else task.address)
    except ValueError as error:
        raise SettingsError(
            f"TF_CONFIG: task {task.name}, address {task.address!r}: {error}; or give {remedy}"
        ) from error


def page_url(settings: "Settings", environ: Mapping[str, str], scheme: str = "http") -> str | None:
    """Return the URL of this node's status page for readers elsewhere: `page_url`, else made of the address of `http`.

    None for a port that is chosen at the start, or an address that only this machine reaches. Raises as
    `advertised_host`.
    """
    if settings.page_url is not None:
        return settings.page_url
    host = settings.http.rpartition(":")[0]
    if dialled(settings.http_host) != settings.http_host:  # it listens on all addresses
        host = advertised_host(settings, environ)
    if not settings.http_port or is_loopback(host):
        return None
    return f"{scheme}://{host}:{settings.http_port}/"
