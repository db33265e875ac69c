"""What a daemon warns of: once, and again only after that has changed."""

from pathlib import Path

from fakes import ListLog

from sidecar.checkpoints.scan import SUPPORTED_CHECKPOINTS, DiscoveredCheckpoint, ScanResult
from sidecar.daemon.operator_warnings import OperatorWarnings
from sidecar.records import Checkpoint


def scan_of(count):
    """A scan that finds so many checkpoints."""
    names = [f"ckpt-{number}" for number in range(count)]
    found = [
        DiscoveredCheckpoint(Checkpoint(name=name, digest=name, step=1, format="tf_object"), Path(), 0.0, 0.0)
        for name in names
    ]
    return ScanResult(by_key={item.checkpoint.key: item for item in found})


def test_more_checkpoints_than_are_supported_are_told_of_once():
    """The daemon goes on: it is slower, and needs more memory."""
    log = ListLog()
    warnings = OperatorWarnings(log=log)
    for count in (SUPPORTED_CHECKPOINTS, SUPPORTED_CHECKPOINTS + 1, SUPPORTED_CHECKPOINTS, SUPPORTED_CHECKPOINTS + 2):
        warnings.scan(scan_of(count), (), no_room={}, watch_problem=None, needs_steps=False)
    (told,) = log.of("many_checkpoints")
    assert (told["count"], told["supported"]) == (SUPPORTED_CHECKPOINTS + 1, SUPPORTED_CHECKPOINTS)
