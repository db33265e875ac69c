"""Provide the only collective that is needed: an element-wise sum of int64 vectors over the ranks of a group.

The group is a `ProcessGroupGloo` of its own, never the default group of `torch.distributed`: with a default group,
torchmetrics and Lightning would add up numbers that are already added up here, and a task could not make one. All sums
are sums of integers on the CPU, so they are exact whatever device the model runs on.

The ranks find each other through a store of rank 0. It listens on the address and the port that the daemon reserved for
this worker, and nowhere else: a `TCPStore` that binds by itself listens on all addresses of the machine. Connections
between the ranks use ports that the kernel chooses.
"""

import contextlib
import errno
import socket
from datetime import timedelta
from typing import Final

import numpy as np
import torch
import torch.distributed as dist

from sidecar.evaluation.backend import Int64s, RankReport, Reduced
from sidecar.evaluation.failures import EvaluationError, first_line
from sidecar.evaluation.reduction import reduce_packs
from sidecar.protocol.messages import Evaluate, Join

LONGEST_WAIT: Final = timedelta(days=1)
"""Limit of the wait for another rank, which may evaluate that long. The limits of the daemons are shorter."""

_BACKLOG: Final = 128


class GlooCollective:
    """Sum over the ranks with gloo. Raises `EvaluationError` if the group cannot be formed."""

    def __init__(self, join: Join) -> None:
        host, port = split(join.members[0].address)
        own_host, _ = split(join.members[join.rank].address)
        try:
            if join.rank == 0:
                listening = listen(host, port)
                self._store = dist.TCPStore(
                    host,
                    port,
                    is_master=True,
                    wait_for_workers=False,
                    timeout=LONGEST_WAIT,
                    master_listen_fd=listening,
                )
            else:
                self._store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=LONGEST_WAIT)
            options = dist.ProcessGroupGloo._Options()  # noqa: SLF001 - the only way to name the address
            options._timeout = LONGEST_WAIT  # noqa: SLF001
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=own_host)]  # noqa: SLF001
            prefixed = dist.PrefixStore(join.group, self._store)
            self._group = dist.ProcessGroupGloo(prefixed, join.rank, len(join.members), options)
        except (RuntimeError, ValueError) as error:
            raise EvaluationError("member_lost", f"the group could not be formed: {first_line(error)}") from error

    def begin(self, command: Evaluate) -> None:
        """Do nothing: the same group serves every plan."""

    def sum(self, vector: Int64s) -> Int64s:
        """Sum with an all-reduce; raise `member_lost` as soon as a peer has gone."""
        total = torch.from_numpy(np.array(vector, np.int64))
        try:
            self._group.allreduce([total]).wait()
        except RuntimeError as error:
            raise EvaluationError(
                "member_lost",
                f"another rank could not be reached in a sum over the ranks of the group: {first_line(error)}",
            ) from error
        summed: Int64s = total.numpy()
        return summed

    def reduce(self, join: Join, report: RankReport) -> Reduced:
        """Add up the states of all ranks with two all-reduces."""
        return reduce_packs(self.sum, join, report)


def listen(host: str, port: int) -> int:
    """Return the descriptor of a socket that listens on this address only. The daemon holds the port, too."""
    with contextlib.ExitStack() as stack:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError as error:
            kind = "address_in_use" if error.errno == errno.EADDRINUSE else "join"
            raise EvaluationError(kind, f"cannot listen on {host}:{port}: {error.strerror}") from error
        return listening.detach()


def split(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
