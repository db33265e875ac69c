"""One directory with as many odd names as fit: each is evaluated once, what is refused is told in a sentence."""

import json
import os
import shutil
import signal
import socket

import pytest
from numpy_trainer import NUMPY

from sidecar.protocol.records import Checkpoint

ANY = NUMPY | {"SIDECAR_CHECKPOINT_PATTERN": "*.npz", "SIDECAR_STEP_PATTERN": r"-([0-9]+)\.npz"}

OBJECTS = (
    "with space-5",
    "line\nbreak\tand\x1b[31m red",
    "STATUS=x\nWATCHDOG=trigger",
    "mod\u00e8le \u6a21\u578b \U0001f600-5",
    os.fsdecode(b"no\xfftext-5"),
    "-dash {x} %s %(y)s 'q' \"q\" $(z) `t` ~ # ; & | <b>-5",
    "glob[1]*?\\n-5",
    "[red]markup[bold]-5",
    "%2e%2e-5",
    "a..-5",
    "case-5",
    "CASE-5",
    "y" * 230,  # 250 letters with the longest suffix
)
FILE_NAMES = ("line\nbreak", os.fsdecode(b"[1]\xff*"), "x" * 240)


@pytest.fixture
def odd_models(numpy_trainer, place, tmp_path):
    """Fills the checkpoint directory with models of numpy; the plain numbers for each name."""
    saved = {}
    for number, name in enumerate((*OBJECTS, *FILE_NAMES)):
        (result,) = numpy_trainer.save(tmp_path / "stage", number)
        odd = f"{name}-{number}.npz"
        (tmp_path / "stage" / result["name"]).rename(place / odd)
        saved[odd] = result
    return saved


@pytest.fixture
def odd_checkpoints(writer, place, tmp_path):
    """Fills the checkpoint directory with what Keras saves; what Keras found for each name."""
    saved = {}
    stage = tmp_path / "stage"
    results = writer.save(stage, *range(1, len(OBJECTS) + 1))
    for name, result in zip(OBJECTS, results, strict=True):
        for file in stage.glob(f"{result['name']}.*"):
            file.rename(place / file.name.replace(result["name"], name))
        saved[name] = result
    for form in (".keras", ".weights.h5", "-exported"):
        for number, name in enumerate(FILE_NAMES):
            (result,) = writer.save(stage, 100 + len(saved), form=form)
            suffix = "" if form == "-exported" else form
            (stage / result["name"]).rename(place / f"{name}-{number}{suffix}")
            saved[f"{name}-{number}{suffix}"] = result | {"step": number}
    return saved


@pytest.fixture
def manager(tmp_path):
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


@pytest.fixture
def refused_models(numpy_trainer, place, tmp_path):
    """Return what is no model, or leads elsewhere; the sentences that are said of some."""
    outside = tmp_path / "outside"
    (model,) = numpy_trainer.save(outside, 2)
    (place / "out.npz").symlink_to(outside / model["name"])
    os.mkfifo(place / "fifo.npz")
    (place / "folder.npz").mkdir()
    (place / "nowhere.npz").symlink_to("nothing")
    (place / "linked").symlink_to(outside)
    return {"out.npz": "out.npz is a link out of the directory", "folder.npz": "folder.npz holds no file"}


@pytest.fixture
def refused_checkpoints(writer, place, tmp_path):
    """Return what is none, or leads elsewhere; the sentences that are said of some."""
    outside = tmp_path / "outside"
    (first,) = writer.save(outside, 1)
    (model,) = writer.save(outside, 2, form=".keras")
    (place / "out.keras").symlink_to(outside / model["name"])
    (place / "out-1.index").symlink_to(outside / f"{first['name']}.index")
    shutil.copy(outside / f"{first['name']}.data-00000-of-00001", place / "out-1.data-00000-of-00001")
    os.mkfifo(place / "fifo.keras")
    (place / "folder.keras").mkdir()
    (place / "nowhere.h5").symlink_to("nothing")
    (place / "linked").symlink_to(outside)
    paths = [
        f"{outside}/{first['name']}",
        f"../outside/{first['name']}",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a\0b",
        "case-5",
    ]
    (place / "checkpoint").write_text("".join(f"all_model_checkpoint_paths: {json.dumps(path)}\n" for path in paths))
    return {
        "out.keras": "out.keras is a link out of the directory",
        "out-1": "out-1.index is a link out of the directory",
    }


def test_odd_names(sidecar, odd_models, refused_models, manager, place):
    """Evaluate models that numpy saves under such names."""
    survive_everything(sidecar, place, manager, odd_models, refused_models, "numpy_plain.py", **ANY)


@pytest.mark.tensorflow
@pytest.mark.nightly
def test_odd_names_of_keras(sidecar, odd_checkpoints, refused_checkpoints, manager, place):
    """Evaluate all formats in one directory; their libraries take some names for patterns."""
    survive_everything(sidecar, place, manager, odd_checkpoints, refused_checkpoints, "plain.py")


def survive_everything(sidecar, place, manager, odd, refused, task, **settings):
    """Catalog, pins, journal, log, metrics, status page, tables, the workers' saves and the service manager."""
    daemon = sidecar.run(
        place,
        *("--role", "worker"),
        task=task,
        NOTIFY_SOCKET=manager.getsockname(),
        SIDECAR_VERIFY="full",
        **settings,
    )
    found = daemon.evaluated(*({"name": name} for name in odd))
    for name, result in odd.items():
        value = found[name]["metrics"]["test"]["accuracy"]["value"]
        assert (found[name]["step"], value) == (result["step"], result["correct"] / result["examples"]), ascii(name)
    rows = daemon.history()
    assert sorted(row["checkpoint"] for row in rows) == sorted(odd), "each once, and nothing else"
    assert {row["status"] for row in rows} == {"succeeded"}
    assert {line["checkpoint"] for line in daemon.log("evaluation_succeeded")} == set(odd)
    assert daemon.samples("sidecar_checkpoints_evaluated_total") == {(): len(odd)}
    page = daemon.get("/")
    assert page[0] == 200
    assert "<b>-5" not in page[1]
    assert {row["checkpoint"] for row in daemon.status()["recent"]} <= set(odd)
    folders = {Checkpoint(name=row["checkpoint"], digest=row["digest"], step=None, format="").folder for row in rows}
    assert {each.name for each in (daemon.run_dir / "evaluations").iterdir()} == folders
    assert all(folder.isascii() and len(folder) < 230 for folder in folders)
    tell_people(sidecar, place, refused, settings)
    assert daemon.end(signal.SIGTERM).code == 0
    assert list((daemon.run_dir / "pins").iterdir()) == []
    assert not [line for line in heard(manager) if not line.startswith(("STATUS=", "READY=", "STOPPING="))]


def tell_people(sidecar, place, refused, settings):
    """`history` and `status`, as tables and as JSON."""
    for command in ("history", "status"):
        told = sidecar.command(command, "--checkpoint-dir", place, COLUMNS="400")
        assert told.code == 0, told.err
        assert "\x1b[31m" not in told.out
        assert ("[red]markup[bold]-5" if command == "history" else "newest ") in told.out
    told = sidecar.command("status", "--checkpoint-dir", place, "--json", **settings)
    incomplete = {entry["checkpoint"]: entry["reason"] for entry in json.loads(told.out)["incomplete"]}
    assert {name: reason for name, reason in incomplete.items() if not reason.startswith("whole, ")} == refused
    assert len(json.loads(sidecar.command("history", "--checkpoint-dir", place, "--json").out)) > len(OBJECTS)


def heard(manager):
    """The lines that a service manager was sent."""
    lines = []
    while True:
        try:
            lines += manager.recv(65536).decode().split("\n")
        except BlockingIOError:
            return lines


@pytest.mark.parametrize("name", ["[red]a[b]\n\x1b[31m-5.npz", os.fsdecode(b"glob[1]\xff-5.npz")], ids=ascii)
def test_eval_by_an_odd_name(sidecar, numpy_trainer, tasks, tmp_path, name):
    """`sidecar eval` takes it from the command line and shows it."""
    (result,) = numpy_trainer.save(tmp_path, 7)
    (tmp_path / result["name"]).rename(tmp_path / name)
    done = sidecar.command("eval", tmp_path / name, "--task", f"{tasks}/numpy_plain.py:task", **ANY)
    assert done.code == 0, done.err
    assert "\x1b[31m" not in done.out
    assert f"{result['correct'] / result['examples']:.5g}" in done.out
