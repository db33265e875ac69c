"""The page of runs that no daemon serves here."""

import json
import shutil
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest
from served_run import ServedRun, value

from sidecar.commands.page import distinct, serve_page
from sidecar.errors import SettingsError

FLAGS = {"config": None, "checkpoint_dir": None, "state_dir": None, "run": None, "http": None}


@pytest.fixture
def new_run(tmp_path, monkeypatch):
    """Writes a run with the accuracies of three evaluations, and returns its checkpoint directory."""
    monkeypatch.chdir(tmp_path)

    def new(name, *accuracies, data="9"):
        folder = tmp_path / name / "ckpts"
        (folder / ".sidecar" / "ckpts").mkdir(parents=True)
        run = ServedRun(folder / ".sidecar" / "ckpts", run="ckpts")
        for place, accuracy in enumerate(accuracies, start=1):
            run.plan(f"ckpt-{place}.keras", place * 10)
            run.succeed({"test": {"accuracy": value(accuracy)}}, data=data)
        return folder

    return new


def get(url):
    """The body of an answer, once it is not `ask again` any more."""
    while True:
        with urlopen(url, timeout=240) as answer:
            if answer.status != 202:
                return answer.read().decode()


@pytest.fixture
def look(capsys):
    """Serves the page of some directories, and returns the answers to some paths."""

    def ask(directories, *paths, ready=bool):
        answers = []

        def until():
            url = capsys.readouterr().out.split()[-4]
            while not ready(json.loads(get(url + "/api/status"))):
                pass
            answers.extend(get(url + path) for path in paths)

        serve_page(FLAGS, [str(each) for each in directories], until=until, look_seconds=0.05)
        return answers

    return ask


def test_one_run_has_the_page_of_a_daemon(new_run, look):
    """Without what only a daemon can say."""
    folder = new_run("a", 0.5, 0.7, 0.6)
    html, status = look([folder], "/", "/api/status", ready=lambda found: found.get("evaluated") == 3)
    assert "0.7" in html
    for absent in ("not ready", 'class="badge ', "Worker processes", "/metrics", "Newest checkpoint"):
        assert absent not in html
    assert "No daemon is alive" in html
    assert str(folder) in html
    assert json.loads(status)["best"]["test/accuracy"]["step"] == 20


def test_two_evaluations_are_compared_example_by_example(compared, look):
    """As `sidecar compare` does; the page of an evaluation leads there."""
    path = "/comparison?new=2&old=1"
    one, html, told = look(
        [compared], "/evaluation?plan=2", path, f"/api{path}", ready=lambda found: found.get("evaluated") == 2
    )
    assert "comparison?new=2&amp;old=1" in one
    assert "example by example" in one
    assert ">+0.0451</data>, <data" in one
    assert "<h1>ckpt-2 compared with ckpt-1</h1>" in html
    assert "+0.06" in html
    assert '<span class="good">better</span> (paired)' in html
    assert '<dt>60 fixed</dt><dd><ul class="examples"><li><q>a text' in html
    assert '<img src="data:image/png;base64,iVBOR' in html
    assert "</ul>800, 803, " in html
    assert "849 …</dd>" in html
    (accuracy, *_) = json.loads(told)["differences"]
    assert (accuracy["verdict"], accuracy["fixed_count"], len(accuracy["fixed"])) == ("better", 60, 50)


def test_several_runs_are_in_one_table(new_run, look):
    """Numbers of other data are not compared, and runs of one name are told apart by the folders above."""
    folders = [new_run("a", 0.5, 0.7), new_run("b", 0.5, 0.9, 0.8), new_run("c", 0.99, data="8")]
    html, status = look(folders, "/", "/api/status", ready=lambda found: all(run["evaluated"] for run in found["runs"]))
    runs = json.loads(status)["runs"]
    assert [run["run"] for run in runs] == ["a-ckpts", "b-ckpts", "c-ckpts"]
    assert {run["ready"] for run in runs} == {None}
    assert [run["main"]["best"]["value"] for run in runs] == [0.7, 0.9, 0.99]
    row_a, row_b, row_c = html.split('<tr id="run-')[1:]
    assert ">-0.2<" in row_a
    assert "best-mark" in row_b
    assert "best-mark" not in row_a + row_c
    assert "metrics for Prometheus" not in html


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(new_run, look, capsys):
    """The others are shown."""
    folders = [new_run("a", 0.5), new_run("b", 0.6)]
    state = folders[1] / ".sidecar" / "ckpts"

    def ready(found):
        if all(run["evaluated"] for run in found["runs"]) and not state.is_symlink():
            shutil.rmtree(state)
            state.symlink_to(state)
        return found["runs"][1]["state"] == "unreadable"

    html, other = look(folders, "/", "/runs/a-ckpts/", ready=ready)
    assert "Run b-ckpts cannot be read:" in html
    assert "All runs" in other
    assert "sidecar: " + str(folders[1]) in capsys.readouterr().err


def test_a_directory_of_any_name_is_shown(new_run, look):
    """Others may have chosen the name, which the documents and the page write alike."""
    folders = [new_run("b\x1b[31m", 0.5), new_run("c", 0.6)]
    html, status = look(folders, "/", "/api/status", ready=lambda found: all(run["evaluated"] for run in found["runs"]))
    assert "\x1b" not in html
    (run, _) = json.loads(status)["runs"]
    assert run["run"] == r"b\x1b[31m-ckpts"
    assert run["run"] in html


def test_a_directory_that_is_mistyped_is_told_at_once(new_run, look):
    """No page is served then."""
    with pytest.raises(SettingsError, match="does not exist"):
        look([new_run("a", 0.5), "b/ckpts"])


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ([("x", "/a/x"), ("y", "/a/y")], ["x", "y"]),
        ([("x", "/a/1/x"), ("x", "/b/1/x")], ["a-1-x", "b-1-x"]),
        ([("x", "s3://one/x"), ("x", "/x")], ["one-x", "x"]),
        ([("x", "/x"), ("x", "/x")], ["x", "x"]),
    ],
)
def test_names_are_told_apart_by_folders(runs, names):
    """The same directory has the same name."""
    assert distinct(runs) == names


def test_the_command_serves_until_it_is_interrupted(new_run):
    """It prints the address at once."""
    command = [sys.executable, "-m", "sidecar", "page", str(new_run("a", 0.5))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert line.startswith("run ckpts: http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(240) == 130
