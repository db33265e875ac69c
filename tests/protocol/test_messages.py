"""Messages come out as they went in, one per line, whatever the user's words in them."""

import json

import pytest

from sidecar.errors import RecordError
from sidecar.protocol.messages import (
    Check,
    Checked,
    Done,
    Evaluate,
    Failed,
    Join,
    Joined,
    Phase,
    Progress,
    Ready,
    decode,
    encode,
)
from sidecar.protocol.records import Checkpoint, Member, Result, Value
from sidecar.protocol.states import WorkerPhase

RESULT = Result(
    group="g",
    workers=2,
    examples={"test": 397},
    metrics={
        "test": {
            "accuracy": Value(value=0.5, hex="0x1p-1", lower=0.4, upper=0.6, goal="max"),
            "loss": Value(value=None, hex="nan", goal="min"),
        }
    },
    phases={"restore": 0.25},
    variables="v",
    task="t",
    profile={"framework": "x"},
    saves=("a", "b"),
)
MESSAGES = [
    Check(task="a.py:task", framework="tensorflow", search_path="/tmp", threads=2),
    Join(
        group="g",
        members=(Member(0, "n", "w", "[::1]:1"),),
        rank=0,
        task="a.py:task",
        framework="tensorflow",
        search_path="/tmp",
        threads=2,
    ),
    Join(
        group="g",
        members=(),
        rank=0,
        task="t",
        framework="f",
        search_path="/",
        threads=1,
        cache_bytes=5,
        options={"collectives": "nccl", "gpu_memory_mb": 100},
    ),
    Join(
        group="g",
        members=(),
        rank=0,
        task="t",
        framework="f",
        search_path="/",
        threads=1,
        options={"trust_saved_graph": True, "gpu_memory_mb": None},
    ),
    Evaluate(
        plan=42,
        checkpoint=Checkpoint(name="ckpt-\udc80", digest="d", step=None, format="tf", pin=None),
        path="/c/ckpt",
        save_to="/s",
        save_weights="all",
        progress_seconds=1,
        evaluated=3,
        attempt=2,
    ),
    Ready("tensorflow", "2.21"),
    Checked("digest", ("test", "other"), {"device": "CPU"}),
    Phase(WorkerPhase.IMPORT),
    Phase(WorkerPhase.EVALUATE, 42),
    Joined("g", "t", {"threads": "2"}),
    Progress(42, 3, None),
    Done(plan=42, rank=1, result=RESULT, traces=1, builds=1),
    Failed(
        kind="task_error",
        message="line 1\nline 2: 'ä' \udcff \u2028",
        plan=42,
        rank=0,
        phase="read",
        details={"a": "b"},
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_round_trip(message):
    """One line of ASCII, and the same message again."""
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert decode(line) == message


def test_fields_of_a_newer_version_are_ignored():
    """A worker of a newer version may say more."""
    line = json.dumps({"type": "Phase", "phase": "read", "mood": "good"}).encode()
    assert decode(line) == Phase(WorkerPhase.READ)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"Traceback", "not a message: b'Traceback'"),
        (b"[1]", "unknown message None"),
        (b'{"type": "Task"}', "unknown message 'Task'"),
        (b'{"type": ["Phase"]}', "unknown message"),
        (b'{"type": "Phase"}', "Phase.phase: missing"),
        (b'{"type": "Phase", "phase": 7}', "Phase.phase: expected WorkerPhase, found '7'"),
        (b"[" * 100_000, "not a message"),
    ],
)
def test_nonsense(line, words):
    """The error about a line that is not a message names the part that is wrong."""
    with pytest.raises(RecordError) as caught:
        decode(line)
    assert words in str(caught.value)
