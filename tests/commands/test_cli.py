"""The command line, up to where its commands begin: what is typed, what is found, what is said about it."""

import errno
import http.server
import json
import os
import subprocess
import sys
import threading

import pytest
from commands.journal_files import Writers
from users import MALLORY, acting_as

from sidecar.commands import cli
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.records import Checkpoint, Value

COMMANDS = ("run", "eval", "history", "export", "status", "check", "requeue", "compact")


@pytest.mark.parametrize("word", ["-h", "--help"])
@pytest.mark.parametrize("command", ["", *COMMANDS, "init", "settings", "completion", "demo"])
def test_help_is_asked_for_in_two_ways(type_, command, word):
    """It fits a terminal, and names an example."""
    code, out, _ = type_(*filter(None, [command, word]))
    assert code == 0
    assert "Examples:" in out
    assert f"$ sidecar {command}" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("word", ["-V", "--version"])
def test_the_version(type_, word):
    """The version is printed with exit code 0, after the name of the program."""
    code, out, _ = type_(word)
    assert code == 0
    assert out.startswith("sidecar-evaluator ")


def test_words_that_people_try(type_):
    """They do what the options do."""
    assert type_("version") == type_("--version")
    assert type_("help") == type_("--help")
    assert type_("help", "hooks", "test") == type_("hooks", "test", "--help")


def test_the_package_runs_as_a_program(tmp_path):
    """Where the program is not in PATH; `--help` names it as it is typed."""
    words = [sys.executable, "-m", "sidecar"]
    done = subprocess.run([*words, "--version"], capture_output=True, text=True, cwd=tmp_path, timeout=240, check=True)
    assert done.stdout.startswith("sidecar-evaluator ")
    done = subprocess.run([*words, "--help"], capture_output=True, text=True, cwd=tmp_path, timeout=240, check=True)
    assert "python -m sidecar" in done.stdout


def test_help_shows_what_matters_to_the_command(type_):
    """Options, their defaults and environment names; `status` has nothing to do with ports."""
    _, out, _ = type_("run", "-h")
    told = " ".join(out.replace("│", " ").split())
    assert "[default: 1; env: SIDECAR_REPLICAS]" in told
    assert "[default: 127.0.0.1:19108; env: SIDECAR_HTTP]" in told
    assert "--once" in out
    assert "--no-wait" not in out
    _, out, _ = type_("status", "-h")
    for option in ("--port-range", "--replicas", "--queue", "--no-wait"):
        assert option not in out
    assert "--no-observe" in out


@pytest.mark.parametrize(
    "words", [["ckpts"], ["-d", "ckpts"], ["--checkpoint-dir", "ckpts"], ["ckpts/", "-d", "ckpts"]]
)
def test_the_directory_is_an_argument_or_an_option(type_, here, words):
    """Both, if they agree."""
    (here / "ckpts").mkdir()
    code, out, err = type_("history", *words)
    assert (code, err) == (0, "")
    assert "no daemon has started yet; `sidecar run ckpts` starts one" in out


@pytest.mark.parametrize("command", ["run --once", "history", "status", "eval", "best", "requeue {} ckpt-5"])
def test_a_typo_of_the_directory(type_, here, command):
    """It is named, as other typos are."""
    (here / "ckpts").mkdir()
    (here / "my_eval.py").write_text("import torch\n\n\ndef task():\n    pass\n")
    words = command.format("ckpt").split() if "{}" in command else [*command.split(), "ckpt"]
    assert "did you mean ckpts?" in type_(*words, "--task", "my_eval.py:task")[2]


def test_a_typo_of_the_directory_of_hooks_and_of_a_new_task(type_, here):
    """These two commands take no task."""
    (here / "ckpts").mkdir()
    assert "did you mean ckpts?" in type_("hooks", "test", "ckpt")[2]
    assert "checkpoints: ckpt (no checkpoint yet; did you mean ckpts?)" in type_("init", "ckpt")[1]


def test_an_export_of_nothing(type_, here):
    """A document without rows for the program, and the reason for the person."""
    (here / "ckpts").mkdir()
    code, out, err = type_("export", "ckpts")
    assert code == 0
    assert out.startswith("plan,completed_at,checkpoint,")
    assert out.count("\n") == 1
    assert "no daemon has started yet; `sidecar run ckpts` starts one" in err
    assert type_("export", "ckpts", "--format", "openmetrics")[1] == "# EOF\n"


def test_two_formats_are_a_mistake(type_, here):
    """Neither is preferred in silence."""
    (here / "ckpts").mkdir()
    code, _, err = type_("history", "ckpts", "--csv", "--json")
    assert code == 2
    assert "--csv and --json are 2 formats" in err
    assert type_("history", "ckpts", "--csv", "--json", "--plot")[0] == 2
    assert type_("history", "ckpts", "--csv", "--from-step", "5")[1].startswith("plan,completed_at,")


def test_two_directories_are_a_mistake(type_):
    """Neither is preferred in silence."""
    code, _, err = type_("history", "ckpts", "-d", "other")
    assert code == 2
    assert "given twice: 'ckpts' as an argument and 'other'" in err


def test_no_directory_at_all(type_):
    """All ways to give it are told."""
    code, _, err = type_("status")
    assert code == 2
    for way in ("--checkpoint-dir", "SIDECAR_CHECKPOINT_DIR", "sidecar.toml", "`sidecar run DIR`"):
        assert way in err


def test_settings_are_found_here_and_that_is_said(type_, here):
    """On standard error, so that what is printed for programs is not disturbed."""
    (here / "ckpts").mkdir()
    (here / "sidecar.toml").write_text('checkpoint_dir = "ckpts"\nrun = "mine"\n')
    code, out, err = type_("status", "--json", "--no-observe")
    assert code == 0
    assert json.loads(out)["run"] == "mine"
    assert err == "sidecar: settings are read from sidecar.toml\n"


def test_a_named_file_replaces_the_found_one(type_, here):
    """`--config` and its variable come first."""
    (here / "ckpts").mkdir()
    (here / "sidecar.toml").write_text('checkpoint_dir = "ckpts"\nrun = "mine"\n')
    (here / "other.toml").write_text('checkpoint_dir = "ckpts"\nrun = "other"\n')
    _, out, err = type_("status", "-c", "other.toml", "--json", "--no-observe")
    assert json.loads(out)["run"] == "other"
    assert err == ""


def test_a_table_of_the_project_file_is_found(type_, here):
    """Only if there is one: the file belongs to other programs."""
    (here / "ckpts").mkdir()
    (here / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert "checkpoint_dir is not set" in type_("history")[2]
    (here / "pyproject.toml").write_text('[tool.sidecar]\ncheckpoint_dir = "ckpts"\n')
    code, out, err = type_("history")
    assert code == 0
    assert "run ckpts: no daemon has started yet" in out
    assert "pyproject.toml" in err
    (here / "pyproject.toml").write_text('[tool.sidecar]\ncheckpoint_dri = "ckpts"\n')
    assert (
        "file pyproject.toml, key checkpoint_dri: there is no such setting; did you mean checkpoint_dir?"
        in type_("history")[2]
    )
    (here / "pyproject.toml").write_text("[tool]\nsidecar = 3\n# tool.sidecar\n")
    assert "write a table, [tool.sidecar]" in type_("history")[2]


def test_a_file_of_another_user_is_not_read(type_, here):
    """It names programs to run: somebody could have put it into a directory that people share."""
    (here / "sidecar.toml").write_text('checkpoint_dir = "ckpts"\n')
    os.chown(here / "sidecar.toml", MALLORY, MALLORY)
    code, _, err = type_("status")
    assert code == 2
    assert "sidecar.toml is not read, because it belongs to another user" in err
    assert "--config sidecar.toml" in err
    assert "checkpoint_dir is not set" in err
    os.chown(here / "sidecar.toml", 0, 0)
    (here / "sidecar.toml").chmod(0o666)
    assert "everybody may write to it" in type_("status")[2]


def test_odd_files_are_passed_over(type_, here):
    """A FIFO would hang whoever reads it; a folder of that name is no file."""
    os.mkfifo(here / "sidecar.toml")
    assert "checkpoint_dir is not set" in type_("status")[2]
    (here / "sidecar.toml").unlink()
    (here / "sidecar.toml").mkdir()
    assert "checkpoint_dir is not set" in type_("status")[2]


def test_who_may_not_read_the_file_is_told(type_, here):
    """Root's settings may hold what others should not see."""
    (here / "sidecar.toml").write_text('checkpoint_dir = "ckpts"\n')
    (here / "sidecar.toml").chmod(0o600)
    here.chmod(0o755)
    for folder in list(here.parents)[:3]:
        folder.chmod(folder.stat().st_mode | 0o055) if "pytest" in str(folder) else None
    with acting_as(MALLORY):
        code, _, err = type_("status")
    assert code == 2
    assert "cannot be read" in err


@pytest.mark.parametrize("command", ["run", "eval", "check"])
def test_a_typo_in_the_task_costs_no_import(type_, here, command):
    """It is told before any process is started, with the exit code of an unusable task."""
    (here / "ckpts").mkdir()
    (here / "my_eval.py").write_text("def task():\n    pass\n")
    words = (command, "ckpts/ckpt-1" if command == "eval" else "ckpts", "-t", "my_evil.py:task", "--role", "worker")
    code, out, err = type_(*words)
    assert code == (1 if command == "check" else 3)
    assert "there is no file" in out + err
    assert "did you mean my_eval.py?" in " ".join((out + err).split())


def test_eval_of_an_empty_directory(type_, here):
    """The directory is the argument, so it is the mistake."""
    (here / "ckpts").mkdir()
    (here / "my_eval.py").write_text("def task():\n    pass\n")
    code, _, err = type_("eval", "ckpts", "-t", "my_eval.py:task")
    assert (code, err) == (2, f"sidecar: there is no complete checkpoint in {here / 'ckpts'}\n")


def test_eval_takes_the_directory_first(type_, here):
    """As all commands do; several checkpoints are several commands."""
    (here / "ckpts").mkdir()
    (here / "my_eval.py").write_text("import torch\n\n\ndef task():\n    pass\n")
    for words in (["ckpts", "ckpt-5"], ["ckpts/ckpt-5"]):
        code, _, err = type_("eval", *words, "-t", "my_eval.py:task")
        assert (code, f"there is no checkpoint ckpt-5 in {here / 'ckpts'}" in err) == (2, True)
    assert "one checkpoint at a time" in type_("eval", "ckpts", "ckpt-5", "ckpt-6", "-t", "my_eval.py:task")[2]


def test_requeue_takes_paths(type_, here):
    """As `eval` does; their directory is that of the run."""
    (here / "ckpts").mkdir()
    code, _, err = type_("requeue", "ckpts/ckpt-5", "ckpts/ckpt-6/")
    assert code == 2
    assert "there is no run here yet" in err
    assert "several directories" in type_("requeue", "a/ckpt-5", "b/ckpt-6")[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--all",), "add --again"),
        (("--all", "ckpts/ckpt-5"), "add --again"),
        (("--again",), "ckpt-5, or --all-failed or --all"),
        ((), "ckpt-5, or --all-failed"),
    ],
)
def test_a_requeue_says_what_is_asked_for_again(type_, here, words, sentence):
    """To evaluate everything again takes hours, so one word is not enough."""
    (here / "ckpts").mkdir()
    code, _, err = type_("requeue", "-d", "ckpts", *words)
    assert code == 2
    assert sentence in err


class Status(http.server.BaseHTTPRequestHandler):
    """Answers as a daemon's /api/status does."""

    def do_GET(self):
        """The node and the run."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"node": "node-1", "run": "ckpts"}).encode())

    def log_message(self, *_):
        """Leave requests out of standard error."""


@pytest.mark.parametrize(("node", "code"), [("node-1", 6), ("node-2", 2)])
def test_a_second_daemon_of_a_node_is_told_by_the_first_one_s_port(type_, here, node, code):
    """Both use the same port by default, so nobody would ever hear of the real reason."""
    (here / "ckpts").mkdir()
    with http.server.HTTPServer(("127.0.0.1", 0), Status) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        ended, _, err = type_("run", "ckpts", "--role", "chief", "--node", node, "--http", address)
        server.shutdown()
    assert ended == code
    assert ("the daemon of run 'ckpts' on node 'node-1' runs already" in err) == (code == 6)


@pytest.mark.parametrize("words", [[], ["ckpts"]])
def test_init_writes_what_the_other_commands_find(type_, here, words):
    """From nothing to `sidecar check` in two commands."""
    (here / "ckpts").mkdir()
    code, out, err = type_("init", *words)
    assert (code, err) == (0, "")
    assert "wrote sidecar.toml" in out
    assert "run ckpts: no daemon has started yet" in type_("status", "--no-observe")[1]


def test_results_are_plotted_and_cut(type_, here):
    """Plot a real journal; without a terminal there are no colors."""
    (here / "ckpts").mkdir()
    storage = PosixStorage(here / "ckpts" / ".sidecar" / "ckpts")
    writers = Writers(storage, open_run(storage, 0.0))
    for step in (100, 200, 300):
        accuracy = Value(value=step / 1000, hex=(step / 1000).hex(), goal="max")
        checkpoint = Checkpoint(name=f"ckpt-{step}", digest="e" * 64, step=step, format="tf_object")
        writers.propose(checkpoint=checkpoint)
        writers.close(metrics={"accuracy": accuracy})
    code, out, err = type_("history", "ckpts", "--plot")
    assert (code, err) == (0, "")
    assert out.startswith("test/accuracy over step  ★ best 0.3 at step 300\n")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    table = type_("history", "ckpts", "--last", "2")[1]
    assert "ckpt-100" not in table
    assert "0.3 ★" in table
    assert [row["step"] for row in json.loads(type_("history", "ckpts", "--last", "1", "--json")[1])] == [300]
    assert type_("history", "ckpts", "--last", "0")[0] == 2
    out = type_("history", "ckpts", "--metric", "acc")[1]
    assert out == (
        "none of the 3 results is what the options ask for; metrics: accuracy; eval sets: test; steps: 100 to 300\n"
    )
    assert type_("history", "ckpts", "--run", "oops")[1].endswith("; runs in ckpts/.sidecar: ckpts\n")
    other = type_("history", "ckpts", "--state-dir", "elsewhere")[1]
    assert other.endswith("its state lies in ckpts/.sidecar: leave --state-dir out\n")


@pytest.fixture
def fail(type_, monkeypatch):
    """Type a command that fails with an error; return its code, its output and what it says."""

    def failing(error):
        def app():
            raise error

        monkeypatch.setattr(cli, "app", app)
        return type_("history")

    return failing


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "standard output cannot be written: No space left"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files: let this process"),
        (MemoryError(), "memory is used up: the machine"),
    ],
)
def test_what_the_machine_lacks_is_one_sentence(fail, error, said):
    """No traceback, and no bug of this program."""
    code, _, err = fail(error)
    assert code == 4
    assert err.startswith(f"sidecar: {said}")
    assert err.count("\n") == 1


def test_another_error_of_the_system_is_a_bug(fail):
    """Nothing is known about it, so its traceback is needed."""
    code, _, err = fail(OSError(errno.EXDEV, os.strerror(errno.EXDEV), "file"))
    assert code == 70
    assert "Traceback" in err


def test_a_command_that_used_a_bucket_ends_before_the_interpreter_does():
    """Threads of obstore outlive it, and would abort the process now and then; what is registered for the end is done.

    The code and the output stay; objects that live until the end of the interpreter are not deleted any more.
    """
    script = (
        "import atexit, sys\n"
        "import obstore\n"
        "from sidecar.commands import cli\n"
        "class Kept:\n"
        "    def __del__(self): print('the interpreter ended')\n"
        "atexit.register(print, 'registered')\n"
        "kept = Kept()\n"
        "cli.app = lambda: (print('answered'), sys.exit(int(sys.argv[1])))\n"
        "cli.main()\n"
    )
    ended = [subprocess.run([sys.executable, "-c", script, code], capture_output=True, text=True) for code in "03"]
    assert [(each.returncode, each.stdout.split()) for each in ended] == [
        (code, ["answered", "registered"]) for code in (0, 3)
    ]
