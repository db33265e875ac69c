"""Divide a model among the processes of a worker, so that none of them holds all of it.

Tensor parallel processes compute with their parts of the weights, and exchange activations: `tensor_plan` decides
whether a model can be divided so. Else each parameter is divided by its rows (`fully_shard` of torch): before a block
of the model runs, its parameters are gathered from all processes, and given up afterwards. In both ways all processes
run the same batches, and have the same bits.

The model is built without memory for its parameters, as each checkpoint brings its own; buffers have their values, as
checkpoints lack some. The processes meet at a port of the loopback interface. Their group is no default group of
`torch.distributed`, for the reasons in `collective`.

Sources: torch `distributed/fsdp/_fully_shard`; the order of construction is that of torchtitan.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from math import prod
from typing import Final, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from sidecar.evaluation.backend import Collective, Int64s, RankReport, Reduced
from sidecar.evaluation.backends.torch.collective import LONGEST_WAIT, listen, split
from sidecar.evaluation.backends.torch.large_blocks import return_large_blocks
from sidecar.evaluation.backends.torch.tensor_plan import NoPlanError, plan_of, tied
from sidecar.evaluation.failures import EvaluationError, first_line, task_error
from sidecar.evaluation.output_comparison import short_digest
from sidecar.evaluation.reduction import reduce_packs
from sidecar.evaluation.task import Task
from sidecar.protocol.messages import Evaluate, Join

_INTERFACE: Final = "GLOO_SOCKET_IFNAME"

ModelParallel = Literal["auto", "tensor", "fully_shard"]
"""The setting `model_parallel`."""


class Division:
    """Connect the processes of one worker. Raises `EvaluationError` (`member_lost`) if they do not meet.

    `wanted`: the way in which models are divided.

    Attributes:
        leads: Whether this is the first process, which has the states and meets the other workers.
    """

    def __init__(self, join: Join, device: torch.device, wanted: ModelParallel) -> None:
        self._wanted = wanted
        self.leads, self._process, self._processes = join.process == 0, join.process, join.processes
        self._digests, self._gather = 0, _GatherInPlace()
        return_large_blocks()
        host, port = split(join.meeting)
        interface = os.environ.get(_INTERFACE)
        try:
            self._store = dist.TCPStore(
                host,
                port,
                is_master=self.leads,
                wait_for_workers=False,
                timeout=LONGEST_WAIT,
                master_listen_fd=listen(host, port) if self.leads else None,
            )
            os.environ[_INTERFACE] = "lo"
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "cpu:gloo",
                store=dist.PrefixStore("group", self._store),
                rank=self._process,
                world_size=self._processes,
                timeout=LONGEST_WAIT,
            )
            self._mesh = init_device_mesh(device.type, (self._processes,))
        except (RuntimeError, ValueError) as error:
            why = f"the processes of the worker could not meet: {first_line(error)}"
            raise EvaluationError("member_lost", why) from error
        finally:
            os.environ.pop(_INTERFACE)
            os.environ |= {} if interface is None else {_INTERFACE: interface}
        self._group = self._mesh.get_group()
        dist.GroupMember.WORLD = None  # so that the task's code finds no default group

    @staticmethod
    def require_divisible(task: Task) -> None:
        """Raise `EvaluationError` for a task that needs the whole model, or values of `build_model`, in one process."""
        for name, is_set in (("restore", task.restore is not None), ("from_build_model", bool(task.from_build_model))):
            if is_set:
                raise task_error(
                    f"Task({name}=…) needs a model that one process holds: processes_per_worker = 1, or leave it out, "
                    f"so that each process reads its part of a checkpoint"
                )

    def divided(self, build: Callable[[], nn.Module], device: torch.device, *, has_values: bool = True) -> nn.Module:
        """Return the model that a function builds, with zeros as the parts of its parameters in this process.

        `has_values`: False if the parameters of another model will take their places, so that they need no memory.
        Raises `EvaluationError` if it cannot be divided.
        """
        with _without_memory():
            model = build()
        if any(isinstance(value, torch.nn.parameter.UninitializedTensorMixin) for value in model.parameters()):
            raise task_error(
                "the model has lazy layers, which get their sizes from a first batch, and several processes "
                "(processes_per_worker) cannot divide it: give the sizes in build_model"
            )
        plan: Mapping[str, ParallelStyle] = {}
        if self._wanted != "fully_shard":
            try:
                plan = plan_of(model, self._processes)
            except NoPlanError as error:
                if self._wanted == "tensor":
                    raise task_error(
                        f'model_parallel = "tensor": {error}: leave it out, so that fully_shard divides the model'
                    ) from error
        try:
            if plan:
                self._divide_by(plan, model)
            else:
                self._shard(model)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise task_error(
                f"the model of build_model cannot be divided among {self._processes} processes: {first_line(error)}"
            ) from error

        def placed(value: torch.Tensor) -> torch.Tensor:
            if not value.is_meta:
                return value.to(device)
            return torch.zeros_like(value, device=device) if has_values else value

        return model._apply(placed)  # noqa: SLF001 - what `to_empty` calls, which would also empty the buffers

    def _divide_by(self, plan: Mapping[str, ParallelStyle], model: nn.Module) -> None:
        """Let the processes compute with parts of the layers of a plan. Parameters that were one remain one."""
        shared = tied(model)
        parallelize_module(model, self._mesh, dict(plan), src_data_rank=None)
        for first, *others in shared:
            for name in others:
                layer, _, own = name.rpartition(".")
                model.get_submodule(layer).register_parameter(own, model.get_parameter(first))

    def _shard(self, model: nn.Module) -> None:
        """Divide all parameters by their rows, to be gathered when their block runs."""
        scalars = {value for value in model.parameters() if not value.ndim}
        for part in (*_blocks(model), model):
            sharded = fully_shard(part, mesh=self._mesh, reshard_after_forward=True, ignored_params=scalars)
            if self._mesh.device_type == "cpu":
                sharded.set_custom_all_gather(self._gather)

    def decided(self, decision: bool) -> bool:
        """Return what the first process decides."""
        return bool(self.of_first(np.array([decision], np.int64))[0])

    def require_same(self, text: str, what: str) -> None:
        """Raise `EvaluationError` (`stream_differs`) unless all processes give the same text about `what`."""
        rows = np.zeros(self._processes, np.int64)
        rows[self._process] = short_digest(text)
        if len(set(self._sum(rows).tolist())) > 1:
            raise EvaluationError(
                "stream_differs",
                f"the processes of a worker {what}: let each process read the same examples in the same order, "
                f"whatever ran before",
            )

    def of_first(self, vector: Int64s) -> Int64s:
        """Return the vector of the first process. Those of the others have its length."""
        return self._sum(vector if self.leads else np.zeros_like(vector))

    def digest(self, own: str) -> str:
        """Return a digest of those of all processes. Any thread may call it: it disturbs no batch."""
        self._digests += 1
        self._store.set(f"{self._digests}/{self._process}", own)
        parts = [self._store.get(f"{self._digests}/{process}") for process in range(self._processes)]
        return sha256(b"".join(parts)).hexdigest()

    def _sum(self, vector: Int64s) -> Int64s:
        total = torch.from_numpy(np.array(vector, np.int64))
        try:
            dist.all_reduce(total, group=self._group)
        except RuntimeError as error:
            why = f"another process of the worker could not be reached: {first_line(error)}"
            raise EvaluationError("member_lost", why) from error
        summed: Int64s = total.numpy()
        return summed


class _GatherInPlace:
    """Gather the parameters of one block after the other in the same memory, for `FSDPModule.set_custom_all_gather`.

    On a CPU, blocks run one at a time, and torch would hold the bytes of the block before and a copy that gloo makes.
    """

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for a tensor; what was returned before is not needed any more."""
        count = prod(size) * dtype.itemsize
        if len(self._bytes) < count:
            with torch.inference_mode(mode=False):  # it is used outside of that mode, too
                self._bytes = torch.empty(count, dtype=torch.uint8, device=device)
        return self._bytes[:count].view(dtype).view(size)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        """Let each process send its part, which lies in its place of the output already."""
        del input_tensor, async_op
        for process, part in enumerate(output_tensor.chunk(group.size())):
            dist.broadcast(part, group=group, group_src=process)


class LeadersCollective:
    """Sum over the leaders of all workers, and pass the sums on to their followers.

    `among_leaders`: the collective of the leader; None in a follower.
    """

    def __init__(self, division: Division, among_leaders: Collective | None) -> None:
        self._division, self._among_leaders = division, among_leaders

    def begin(self, command: Evaluate) -> None:
        """Prepare for the evaluation of one plan."""
        if self._among_leaders is not None:
            self._among_leaders.begin(command)

    def sum(self, vector: Int64s) -> Int64s:
        """Return the sum of the vectors of all leaders."""
        return self._division.of_first(vector if self._among_leaders is None else self._among_leaders.sum(vector))

    def reduce(self, join: Join, report: RankReport) -> Reduced:
        """Add up the states of all leaders."""
        return reduce_packs(self.sum, join, report)


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts of a model that are gathered one at a time: the elements of its outermost lists of layers.

    A `ModuleDict` of numbers, as torchtitan's layers are, is such a list.
    """
    children = list(model.children())
    is_numbered = isinstance(model, nn.ModuleDict) and all(map(str.isdecimal, model))
    if isinstance(model, nn.ModuleList | nn.Sequential) or is_numbered:
        yield from (each for each in children if any(True for _ in each.parameters()))
        return
    for each in children:
        yield from _blocks(each)


@contextmanager
def _without_memory() -> Iterator[None]:
    """Let modules that are built in a block have parameters on the device `meta`."""
    register = nn.Module.register_parameter

    def without_memory(module: nn.Module, name: str, value: nn.Parameter | None) -> None:
        if value is not None and type(value) is nn.Parameter and not value.is_meta:
            value = nn.Parameter(value.to("meta"), requires_grad=value.requires_grad)
        register(module, name, value)

    nn.Module.register_parameter = without_memory
    try:
        yield
    finally:
        nn.Module.register_parameter = register
