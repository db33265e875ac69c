"""`sidecar best` names the best checkpoint for scripts, or says why there is none."""

import contextlib
import json
import os
import pty
import shutil
from pathlib import Path

import pytest
from fakes import FakeClock, Node, pass_time, save
from typer.testing import CliRunner

from sidecar.checkpoints.inspect import verify
from sidecar.commands import cli
from sidecar.commands.best import copy_best, find_best, print_best
from sidecar.errors import NoExportError, SettingsError, StorageError
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.records import Value
from sidecar.settings import Settings
from sidecar.system.durable import copy_content

NAMES = {"ckpt-1.index", "ckpt-1.data-00000-of-00001", "manifest.json"}


@pytest.fixture
def node(tmp_path):
    """A node that has exported the better one of two checkpoints; training deleted it."""
    node = Node(tmp_path, FakeClock(), exports=ExportRule(metric="test/accuracy", count=2))
    for step, number in ((1, 0.9), (2, 0.8)):
        node.numbers[f"ckpt-{step}"] = Value(value=number, hex=number.hex(), goal="max")
        save(node.checkpoint_dir, step)
        pass_time(12, node)
    return node


def run(node, *options, command="best"):
    """Return what the command prints, or the error that it raises."""
    result = CliRunner().invoke(cli.app, [command, str(node.checkpoint_dir), "--run", "run", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout.strip()


def test_the_path_that_a_framework_takes_is_printed(node):
    """And nothing else, so that a script can use it."""
    path = Path(run(node))
    assert path.name == "ckpt-1"
    assert path.with_name("ckpt-1.index").is_file()
    assert path.parent.name.startswith("ckpt-1@")


def test_a_terminal_does_not_obey_the_name_of_a_checkpoint(node):
    """A script gets its very bytes."""
    name = "c\x1b[31mk-3"
    node.numbers[name] = Value(value=0.95, hex=(0.95).hex(), goal="max")
    save(node.checkpoint_dir / "hidden", 3)
    for path in (node.checkpoint_dir / "hidden").glob("ckpt-3.*"):
        path.rename(node.checkpoint_dir / path.name.replace("ckpt-3", name))
    pass_time(12, node)
    assert run(node).endswith(f"/{name}")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb") as screen, os.fdopen(theirs, "w") as terminal:
        with contextlib.redirect_stdout(terminal):
            print_best(
                {"config": None, "checkpoint_dir": node.checkpoint_dir, "run": "run"}, as_json=False, copy_to=None
            )
        terminal.flush()
        assert screen.readline().rstrip().endswith(b"/c\\x1b[31mk-3")


def test_what_is_known_of_it_is_printed_as_json(node):
    """The manifest, with the paths here."""
    said = json.loads(run(node, "--json"))
    assert said["path"] == run(node)
    assert said["metrics"]["test"]["accuracy"]["value"] == 0.9
    assert said["ranks"] == {"test/accuracy": 1}


def test_a_copy_has_the_original_names(node, tmp_path):
    """It appears at once, and is whole."""
    path = Path(run(node, "--copy-to", str(tmp_path / "deployed")))
    assert path == tmp_path / "deployed" / "ckpt-1"
    assert {entry.name for entry in path.parent.iterdir()} == NAMES
    assert verify(path.parent, "ckpt-1") == json.loads((path.parent / "manifest.json").read_text())["digest"]
    assert not list(tmp_path.glob(".deployed*"))
    with pytest.raises(SettingsError, match="deployed exists"):
        run(node, "--copy-to", str(tmp_path / "deployed"))
    with pytest.raises(SettingsError, match="nowhere does not exist"):
        run(node, "--copy-to", str(tmp_path / "nowhere" / "deployed"))


def test_a_copy_has_no_file_that_the_format_does_not_name(node, tmp_path):
    """Leave planted entries in an export, be they code or a sparse file of terabytes."""
    best = node.run_dir / "exports" / "best"
    (best / ".config").mkdir()
    for name in ("sitecustomize.py", "__init__.py", ".config/x", "ckpt-1.data-00001-of-00002"):
        (best / name).write_text("raise SystemExit")
    with (best / "huge").open("wb") as file:
        file.truncate(1 << 42)
    os.mkfifo(best / "pipe")
    path = Path(run(node, "--copy-to", str(tmp_path / "deployed")))
    assert {entry.name for entry in path.parent.iterdir()} == NAMES
    files = json.loads((path.parent / "manifest.json").read_text())["files"]
    assert {file["name"] for file in files} == NAMES - {"manifest.json"}


def test_a_hole_in_a_copied_file_takes_no_space(tmp_path):
    """An archive may have one between its members, and a copy of zeros would fill the disk."""
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.write(b"head")
        file.truncate(1 << 40)
        file.seek((1 << 40) - 1)
        file.write(b"t")
        file.truncate((1 << 40) + (1 << 30))
    with source.open("rb", buffering=0) as original, target.open("wb") as copy:
        copy_content(original, copy)
    assert target.stat().st_size == source.stat().st_size
    assert target.stat().st_blocks * 512 < 1 << 20
    with target.open("rb") as copied:
        assert copied.read(5) == b"head\0"
        copied.seek((1 << 40) - 1)
        assert copied.read(2) == b"t\0"


def test_a_copy_that_does_not_fit_is_not_begun(node, tmp_path, monkeypatch):
    """The message has both numbers."""
    monkeypatch.setattr("sidecar.commands.best.free_bytes", lambda _: 10)
    with pytest.raises(StorageError, match=r"\d+ bytes, and 10\b"):
        run(node, "--copy-to", str(tmp_path / "deployed"))
    assert not [path for path in tmp_path.iterdir() if "deployed" in path.name]


def test_planted_numbers_are_not_repeated(node, tmp_path):
    """Neither the command nor the manifest of a copy has other numbers than the journal."""
    path, said = node.run_dir / "exports" / "best" / "manifest.json", json.loads(run(node, "--json"))
    planted = {"metrics": {}, "examples": {"test": 9}, "evaluated_at": "2001-01-01T00:00:00Z"}
    path.write_text(json.dumps(json.loads(path.read_text()) | planted))
    assert json.loads(run(node, "--json")) == said
    copied = Path(run(node, "--copy-to", str(tmp_path / "deployed"))).with_name("manifest.json")
    assert {name: json.loads(copied.read_text())[name] for name in planted} == {name: said[name] for name in planted}


def test_a_manifest_names_no_planted_file(node):
    """It is written again by each daemon, from the files that the format names."""
    path = node.run_dir / "exports" / "best" / "manifest.json"
    (path.parent / "sitecustomize.py").write_text("raise SystemExit")
    path.unlink()
    again = Node(
        node.checkpoint_dir.parent, node.clock, incarnation="i2", exports=ExportRule(metric="test/accuracy", count=2)
    )
    pass_time(12, again)
    assert {file["name"] for file in json.loads(path.read_text())["files"]} == NAMES - {"manifest.json"}


@pytest.mark.parametrize("lost", ["ckpt-1.*", "ckpt-1.index", "*"])
def test_a_copy_of_an_export_that_is_removed_meanwhile_does_not_appear(node, tmp_path, lost):
    """A daemon removes it between the check and the copy, once better ones exist."""
    best = find_best(Settings(checkpoint_dir=node.checkpoint_dir, run="run"), node.storage.storage)
    for path in best.folder.glob(lost):
        path.unlink()
    with pytest.raises(NoExportError):
        copy_best(best, tmp_path / "deployed", lambda: None)
    assert not [path for path in tmp_path.iterdir() if "deployed" in path.name]


def test_without_exports_the_best_saved_checkpoint_is_named(node):
    """With its number, and how to keep it; no other content of its name, and no checkpoint that is gone."""
    node.numbers["ckpt-3"] = Value(value=0.95, hex=(0.95).hex(), goal="max")
    save(node.checkpoint_dir, 3)
    pass_time(12, node)
    shutil.rmtree(node.run_dir / "exports")
    path = str(node.checkpoint_dir / "ckpt-3")
    result = CliRunner().invoke(cli.app, ["best", str(node.checkpoint_dir), "--run", "run"])
    assert (result.exit_code, result.stdout.strip()) == (0, path)
    assert "ckpt-3 (step 3) is the best by test/accuracy, 0.95" in result.stderr
    assert "export_best" in result.stderr
    known = json.loads(run(node, "--json"))
    assert (known["path"], known["metric"], known["value"], known["exported"]) == (path, "test/accuracy", 0.95, False)
    save(node.checkpoint_dir, 4)
    shutil.copy(node.checkpoint_dir / "ckpt-4.index", node.checkpoint_dir / "ckpt-3.index")
    with pytest.raises(NoExportError, match=r"ckpt-3.*is gone"):
        run(node)


def test_a_run_without_exports_says_how_to_get_some(node, tmp_path):
    """Before the first daemon, and after it."""
    shutil.rmtree(node.run_dir / "exports")
    with pytest.raises(NoExportError, match="export_best"):
        run(node, "--copy-to", str(tmp_path / "copy"))
    shutil.rmtree(node.run_dir)
    with pytest.raises(NoExportError, match="no daemon has started"):
        run(node)


def test_a_run_without_results_names_what_shows_its_progress(tmp_path):
    """No setting is missing, though nothing is exported: the first evaluation has not ended."""
    node = Node(tmp_path, FakeClock())
    save(node.checkpoint_dir, 1)
    pass_time(0.1, node)
    with pytest.raises(NoExportError, match=r"no result yet; `sidecar status"):
        run(node)


@pytest.mark.parametrize("target", ["/etc", "../evaluations", "foreign", "missing@0123456789ab"])
def test_a_planted_link_leads_nowhere(node, target):
    """Neither out of the exports, nor to what the journal does not know."""
    folder = node.run_dir / "exports"
    (folder / "foreign").mkdir()
    (folder / "foreign" / "manifest.json").write_bytes((folder / "best" / "manifest.json").read_bytes())
    (folder / "best").unlink()
    (folder / "best").symlink_to(target)
    with pytest.raises(NoExportError):
        run(node)


def test_an_export_with_other_content_is_refused(node):
    """A name, a link and a manifest can be planted; the digest is computed again."""
    folder = node.run_dir / "exports"
    (other,) = folder.glob("ckpt-2@*")
    (best,) = folder.glob("ckpt-1@*")
    for path in best.glob("ckpt-1.*"):
        path.unlink()
    for path in other.glob("ckpt-2.*"):
        shutil.copy(path, best / path.name.replace("ckpt-2", "ckpt-1"))
    with pytest.raises(NoExportError, match="does not hold ckpt-1"):
        run(node)


def test_a_missing_manifest_is_told_and_comes_back(node):
    """Nobody is told to move the best checkpoint away."""
    (node.run_dir / "exports" / "best" / "manifest.json").unlink()
    with pytest.raises(NoExportError, match="restart a daemon"):
        run(node)
    again = Node(
        node.checkpoint_dir.parent, node.clock, incarnation="i2", exports=ExportRule(metric="test/accuracy", count=2)
    )
    pass_time(12, again)
    assert run(node).endswith("/ckpt-1")


def compare(node, **values):
    """Write into the manifest of the best export how much better it is."""
    path = node.run_dir / "exports" / "best" / "manifest.json"
    known = {"run": "r", "metric": "test/accuracy", "new": 2, "old": 1, "rule": "intervals", "better": True}
    better = known | {"difference": 0.1, "lower": 0.02, "upper": 0.18} | values
    path.write_text(json.dumps(json.loads(path.read_text()) | {"better_than": better}))


def test_the_status_names_the_best_export(node, monkeypatch):
    """With its path, by how much it is better, and by which rule; in JSON under the names of `sidecar best --json`."""
    monkeypatch.setenv("COLUMNS", "300")
    path = run(node)
    assert f"export  {path}\n" in run(node, "--no-observe", command="status")
    compare(node)
    assert f"export  {path}, better by 0.1 (95 % 0.02 to 0.18, intervals)\n" in run(
        node, "--no-observe", command="status"
    )
    found, said = (
        json.loads(run(node, "--json", "--no-observe", command="status"))["best_export"],
        json.loads(run(node, "--json")),
    )
    assert (found["path"], found["better_than"]["rule"]) == (path, "intervals")
    assert found.items() <= said.items()


def test_the_status_shows_nothing_that_a_planted_manifest_says(node, monkeypatch):
    """Neither a rule that does not exist, nor what would control the terminal."""
    monkeypatch.setenv("COLUMNS", "300")
    compare(node, rule="\x1b[2J" + "x" * 1000)
    assert f"export  {run(node)}\n" in run(node, "--no-observe", command="status")


@pytest.mark.parametrize("planted", ["nothing", "a link out", "a file"])
def test_the_status_needs_no_export(node, tmp_path, planted):
    """Without exports, or with others in their place, it shows the rest."""
    shutil.rmtree(node.run_dir / "exports")
    if planted == "a link out":
        (node.run_dir / "exports").symlink_to(tmp_path)
    elif planted == "a file":
        (node.run_dir / "exports").write_text("")
    assert "export  " not in run(node, "--no-observe", command="status")
    assert json.loads(run(node, "--json", "--no-observe", command="status"))["best_export"] is None
