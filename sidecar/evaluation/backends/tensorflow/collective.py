"""Provide the only collective that is needed: an element-wise sum of int64 vectors over the ranks of a group."""

import re
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backend import Int64s, RankReport, Reduced
from sidecar.evaluation.backends.tensorflow.options import options_of
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.reduction import reduce_packs
from sidecar.protocol.messages import Evaluate, Join

_TASK: Final = re.compile(r"/job:worker(?:/replica:\d+)?/task:(\d+)")
_IMPLEMENTATIONS: Final = {
    "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
}


class MirroredCollective:
    """Sum over the ranks with a `MultiWorkerMirroredStrategy` and a cluster made for this purpose.

    The job is named `worker`, because TensorFlow allows only one `evaluator`. A resolver that reports zero GPUs keeps
    the sums (a few KB) on the CPU and away from NCCL, whichever device the model runs on.
    """

    def __init__(self, join: Join) -> None:
        self._join, self._options = join, options_of(join)
        cluster = tf.train.ClusterSpec({"worker": [member.address for member in join.members]})
        accelerators = {"GPU": 0} if self._options.collectives != "nccl" else None
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, task_type="worker", task_id=join.rank, num_accelerators=accelerators, rpc_layer="grpc"
        )
        implementation = _IMPLEMENTATIONS[self._options.collectives]
        options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
        try:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
        except tf.errors.UnknownError as error:
            if "Could not start gRPC server" not in str(error):
                raise
            address = join.members[join.rank].address
            raise EvaluationError("address_in_use", f"cannot listen on {address}: {error.message}") from error

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator]
        def all_reduce(vector: Any) -> Any:
            per_replica = self._strategy.run(tf.identity, (vector,))
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

        self._all_reduce = all_reduce

    def sum(self, vector: Int64s) -> Int64s:
        """Sum with an all-reduce; raise `member_lost` some seconds after a peer has gone."""
        try:
            total: Int64s = np.asarray(self._all_reduce(tf.constant(vector, tf.int64)), np.int64)
        except tf.errors.OpError as error:
            raise self._lost_member(error.message) from error
        return total

    def begin(self, command: Evaluate) -> None:
        """Do nothing: the same cluster serves every plan of the group."""

    def reduce(self, join: Join, report: RankReport) -> Reduced:
        """Add up the states of all ranks with two all-reduces."""
        return reduce_packs(self.sum, join, report)

    def _lost_member(self, message: str) -> EvaluationError:
        """Return the error that names the lost rank, if the message of TensorFlow identifies its task.

        If a message names several tasks, the last one is lost; the tasks before it only forwarded the message.
        """
        named = [rank for rank in map(int, _TASK.findall(message)) if rank != self._join.rank]
        members = [self._join.members[rank] for rank in dict.fromkeys(named) if rank < len(self._join.members)]
        rank = members[-1].rank if members else None
        ranks = ", ".join(f"rank {member.rank} on {member.node} ({member.address})" for member in members)
        lost = f"{ranks or 'another rank'} could not be reached in a sum over the ranks of the group"
        if self._options.collectives == "nccl":
            lost = f"{lost}; collectives = 'nccl' also needs a GPU of the same kind for each rank alone: {message}"
        return EvaluationError("member_lost", lost, lost=rank)
