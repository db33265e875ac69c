"""Daemons that export their best checkpoints, and questions about what is there."""

import json
from pathlib import Path

import pytest
from daemon.conftest import clock, new_node, node
from fakes import pass_time, save
from records import make_plan

from sidecar.checkpoints.inspect import verify
from sidecar.coordination.journal import Journal
from sidecar.coordination.run import read_run
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.records import Settlement, Value

__all__ = ["clock", "exporting", "new_node", "node"]

RULE = ExportRule(metric="test/accuracy", count=2)


def accuracy(number, half=None):
    bounds = {} if half is None else {"lower": number - half, "upper": number + half}
    return Value(value=number, hex=number.hex(), goal="max", **bounds)


@pytest.fixture
def exporting(new_node):
    """A node that retains the two best checkpoints."""
    return new_node(exports=RULE)


def evaluate(node, *numbers, half=None, first=1, others=()):
    """Save checkpoints whose accuracies are these, one after the other; training keeps the newest only."""
    for step, number in enumerate(numbers, start=first):
        for each in (node, *others):
            each.numbers[f"ckpt-{step}"] = accuracy(number, half)
        save(node.checkpoint_dir, step)
        pass_time(12, node, *others)


def exports(node) -> Path:
    return node.run_dir / "exports"


def exported(node) -> list[str]:
    """The checkpoints that are exported."""
    return sorted(path.name.split("@")[0] for path in exports(node).glob("*@*"))


def linked(node) -> str | None:
    """The checkpoint to which the link leads."""
    link = exports(node) / "best"
    return str(link.readlink()).split("@")[0] if link.is_symlink() else None


def manifest(node, name: str = "best") -> dict:
    (path,) = exports(node).glob("best" if name == "best" else f"{name}@*")
    return json.loads((path / "manifest.json").read_text())


def pinned(node) -> list[str]:
    return sorted(path.name.split("@")[0] for path in (node.run_dir / "pins").glob("[!.]*"))


def export_of(node, name: str) -> Path:
    (path,) = exports(node).glob(f"{name}@*")
    return path


def is_whole(node, name: str) -> bool:
    path = export_of(node, name)
    return verify(path, name)[:12] == path.name.rpartition("@")[2] and (path / f"{name}.data-00000-of-00001").exists()


def requeue(node, name: str) -> None:
    """A person asks for another evaluation."""
    run = read_run(node.storage.storage)
    journal = Journal(node.storage.storage, run)
    list(journal.read_to_end())
    key = next(key for key in node.state.history.verdicts.succeeded if key[0] == name)
    settlement = Settlement(name=key[0], digest=key[1], step=None, verdict="requeued", reason="asked")
    journal.propose(
        make_plan(
            journal.through + 1,
            None,
            run=run,
            nonce="by hand",
            attempt=0,
            members=None,
            settles=(settlement,),
            task=None,
            proposer="person",
        )
    )


def is_export(*_, src_dir_fd=None, dst_dir_fd=None, **__):
    """Tell whether a rename is one between folders, which makes an export of a pin."""
    return src_dir_fd != dst_dir_fd
