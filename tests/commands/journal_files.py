"""A run as its daemons write it into files: journal and heartbeats, shared by the tests of what reads them."""

from heartbeats import make_heartbeat
from records import make_plan

from sidecar.coordination.heartbeats import Heartbeats
from sidecar.coordination.journal import Journal
from sidecar.protocol.heartbeat import Slot
from sidecar.protocol.records import Member, Outcome, Result, group_id

AT = "2027-01-15T08:16:30.000Z"


class Writers:
    """The daemons of a run, as far as their files go."""

    def __init__(self, storage, run):
        self.storage, self.run = storage, run
        self.journal = Journal(storage, run)

    def beat(self, node, beat, **given):
        """A node writes its heartbeat."""
        slot = Slot(worker=f"{node}.a.1", group="g", address="h:1", standby=f"{node}.a.2", standby_address="h:2")
        known = {"incarnation": "a", "role_source": "role = worker", "version": "1.0", "task": "t1", "slots": (slot,)}
        beating = make_heartbeat(**known | {"run": self.run, "node": node, "beat": beat} | given)
        Heartbeats(self.storage, self.run).write(beating)

    def propose(self, *settles, checkpoint=None, nodes=("node-0",)):
        """Create the next plan in the journal."""
        self.journal.read_new()
        members = tuple(Member(rank, node, f"{node}.a.1", "h:1") for rank, node in enumerate(nodes))
        number = self.journal.through + 1
        plan = make_plan(
            number,
            checkpoint,
            run=self.run,
            nonce=f"plan-{number}",
            members=members if checkpoint else None,
            settles=settles,
            proposer="node-0",
            proposed_at=AT,
        )
        assert self.journal.propose(plan)
        self.journal.read_new()

    def close(self, kind=None, message=None, metrics=None, data=None):
        """The end of the open plan: a success, unless a kind of failure is named."""
        number = self.journal.through
        group = group_id(self.journal.open.members)
        result = (
            None
            if kind
            else Result(
                group=group,
                workers=1,
                examples={"test": 10},
                metrics={"test": metrics or {}},
                phases={},
                variables="v",
                task="t1",
                profile={},
                saves=(),
                data=data or {},
            )
        )
        status = "failed" if kind else "succeeded"
        outcome = Outcome(
            plan=number,
            run=self.run,
            nonce=f"end-{number}",
            status=status,
            closed_by="node-0",
            completed_at=AT,
            result=result,
            kind=kind,
            message=message,
        )
        assert self.journal.close(outcome)
        self.journal.read_new()
