"""Read settings from flags, environment and file, and name the one that is wrong."""

from pathlib import Path

import pytest
from settings.conftest import MINIMAL, problems

from sidecar.settings import Settings, load


def test_a_flag_beats_the_environment_which_beats_the_file(write):
    """Each source replaces the weaker one, setting by setting."""
    environ = write('checkpoint_dir = "/f"\nrun = "file"\ntask = "file.py:task"\nnode = "file"')
    environ |= {"SIDECAR_RUN": "environment", "SIDECAR_NODE": "environment"}
    settings = load({"node": "flag"}, environ=environ)
    assert (settings.task, settings.run, settings.node) == ("file.py:task", "environment", "flag")
    assert settings.checkpoint_dir == Path("/f")


def test_the_config_flag_beats_its_variable(tmp_path, write):
    """`--config` names another file than SIDECAR_CONFIG does."""
    other = tmp_path / "other.toml"
    other.write_text('run = "other"')
    assert load({"config": other}, environ=MINIMAL | write('run = "first"')).run == "other"


def test_what_was_not_given_does_not_count(write):
    """A null option and an empty variable leave the weaker source in force, and a replaced bad value is not judged."""
    environ = MINIMAL | write('run = "file"\nreplicas = "many"') | {"SIDECAR_RUN": "", "SIDECAR_REPLICAS": "2"}
    settings = load({"run": None}, environ=environ)
    assert (settings.run, settings.replicas) == ("file", 2)


def test_the_process_environment_is_read_only_by_default_argument(monkeypatch):
    """A passed environment replaces the process's own, and constructing `Settings` reads neither."""
    monkeypatch.setenv("SIDECAR_REPLICAS", "7")
    assert load({}, environ=MINIMAL).replicas == 1
    assert Settings(checkpoint_dir=Path("/data")).replicas == 1
    assert load({"checkpoint_dir": "/data"}).replicas == 7


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("replicas", "3", 3),
        ("wait", "false", False),
        ("standby", "0", False),
        ("lease_seconds", "7.5", 7.5),
        ("chief_nodes", "a, node-0*,", ("a", "node-0*")),
        ("http_hosts", "prom.example.com, *.b.example", ("prom.example.com", "*.b.example")),
        ("devices", "cpu", "cpu"),
        ("devices", "gpu", "gpu"),
        ("devices", "0,2", (0, 2)),
        ("devices", "1", (1,)),
        ("devices", "GPU-8a1c,3", ("GPU-8a1c", 3)),
        ("worker_env", '{"A": "1", "B": null, "C": 2}', {"A": "1", "B": None, "C": "2"}),
        ("role", "chief", "chief"),
        ("host", "::1", "[::1]"),
        ("host", "[fd00::7]", "[fd00::7]"),
        ("host", "gpu-3.cluster", "gpu-3.cluster"),
        ("http", "[::1]:0", "[::1]:0"),
        ("stop_after_step", "0", 0),
        ("save_weights", "first", "first"),
        ("every_steps", "100", 100),
        ("done_marker", "DONE", "DONE"),
        ("keep_free_bytes", "0", 0),
        ("best_metric", "test/digit/f1", "test/digit/f1"),
    ],
)
def test_variables_are_text_and_become_values(variable, text, expected):
    """Every kind of setting can be written in an environment variable."""
    settings = load({}, environ=MINIMAL | {f"SIDECAR_{variable.upper()}": text})
    assert getattr(settings, variable) == expected


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        ('chief_nodes = ["a", "b*"]', "chief_nodes", ("a", "b*")),
        ('devices = [0, "GPU-1"]', "devices", (0, "GPU-1")),
        ("worker_env = {A = 'x', HTTP_PROXY = false}", "worker_env", {"A": "x", "HTTP_PROXY": None}),
        ("pin_max_bytes = 1_000_000", "pin_max_bytes", 1000000),
    ],
)
def test_the_file_writes_lists_and_tables_its_own_way(write, line, name, expected):
    """TOML has lists and tables but no null, for which false stands."""
    assert getattr(load({}, environ=MINIMAL | write(line)), name) == expected


@pytest.mark.parametrize(
    ("line", "shown", "remedy"),
    [
        ("replicas = true", "key replicas: True", "write a number"),
        ("chief_nodes = ['a', 3]", "key chief_nodes[1]: 3", "write a text"),
        ("chief_nodes = ['']", "key chief_nodes: ['']", "names or globs"),
        ("http_hosts = ['a.example:80']", "key http_hosts: ['a.example:80']", "without port"),
        ("devices = []", "key devices: []", "cpu, gpu, or the GPUs"),
        ("devices = [true]", "key devices: [True]", "cpu, gpu, or the GPUs"),
        ("worker_env = {A = 1.5}", "key worker_env: {'A': 1.5}", '{"OMP_NUM_THREADS": "1"'),
        ("checkpoint_dir = 3", "key checkpoint_dir: 3", "path"),
        ("checkpoint_dir = 's4://b/x'", "key checkpoint_dir: 's4://b/x'", "s3://bucket/folder"),
        ("state_dir = ''", "key state_dir: ''", "write a path"),
        ("checkpoint-dir = 'x'", "key checkpoint-dir: there is no such setting", "did you mean checkpoint_dir?"),
        ("zebra = 1", "key zebra: there is no such setting", "`sidecar settings`"),
        ("[sidecar]\nrun = 'x'", "key sidecar: there is no such setting", "`sidecar settings`"),
        ("config = 'x'", "key config: there is no such setting", "remove it"),
    ],
)
def test_a_bad_key_of_the_file_is_shown_with_its_remedy(write, line, shown, remedy):
    """Types that only TOML has are judged, and the file is named."""
    environ = write(line)
    (problem,) = problems({} if line.startswith("checkpoint_dir") else {"checkpoint_dir": "/data"}, environ=environ)
    assert problem.startswith(f"file {environ['SIDECAR_CONFIG']}, {shown}")
    assert remedy in problem


def test_all_problems_are_told_at_once(write):
    """A person who corrects a configuration wants to do it once."""
    environ = write("lease_seconds = 3\nzebra = 1") | {"SIDECAR_REPLICA": "2", "SIDECAR_THREADS": "two"}
    lines = problems({"min_workers": 0, "http": "x", "zoo": 1}, environ=environ)
    starts = [
        "environment SIDECAR_REPLICA: there is no such setting; did you mean SIDECAR_REPLICAS?",
        f"file {environ['SIDECAR_CONFIG']}, key zebra: ",
        "option --zoo: ",
        "checkpoint_dir is not set: give --checkpoint-dir, SIDECAR_CHECKPOINT_DIR or checkpoint_dir in sidecar.toml",
        "option --min-workers: 0: ",
        "option --http: 'x': ",
        "environment SIDECAR_THREADS: 'two': ",
        f"file {environ['SIDECAR_CONFIG']}, key lease_seconds: 3: ",
    ]
    assert len(lines) == len(starts)
    assert all(any(line.startswith(start) for line in lines) for start in starts), lines


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"replicas = 2\nrun = name", "at line 2, column 7"),
        (b"replicas 2", "at line 1, column 10"),
        (b"run = 1\nrun = 2", "at line 2, column 8"),
        (b"devices = [1,\n2", "at line 2, column 2"),
        (b"run = '\xff'", "'utf-8' codec can't decode byte 0xff in position 7"),
    ],
)
def test_a_file_that_is_no_toml_says_where(tmp_path, content, said):
    """The place is told, other sources are still judged, and nothing is called missing that the file may hold."""
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    lines = problems({"config": path, "replicas": 0})
    assert len(lines) == 2
    assert lines[0].startswith(f"file {path}: not TOML: ")
    assert said in lines[0]
    assert "write lines such as replicas = 2" in lines[0]
    assert lines[1].startswith("option --replicas: 0: ")


def test_a_file_that_is_not_there_is_named(tmp_path):
    """A path that was given is never skipped in silence."""
    (line,) = problems({"config": tmp_path / "none.toml"})
    assert line.startswith(f"file {tmp_path / 'none.toml'}: cannot be read (No such file or directory); give --config")
    (line,) = problems({"config": tmp_path})
    assert "Is a directory" in line


def test_the_variables_of_a_kubernetes_service_are_not_mistaken_for_settings():
    """A Service called `sidecar` is described to every pod under the same prefix."""
    service = {"SIDECAR_SERVICE_HOST": "10.0.0.1", "SIDECAR_PORT": "tcp://10.0.0.1:80", "SIDECAR_PORT_80_TCP_ADDR": "x"}
    in_pod = MINIMAL | service | {"KUBERNETES_SERVICE_HOST": "10.0.0.2"}
    assert load({}, environ=in_pod).run == "run-7"
    assert len(problems(environ=MINIMAL | service)) == 3
    (line,) = problems(environ=in_pod | {"SIDECAR_PORT_RANGES": "1"})
    assert "did you mean SIDECAR_PORT_RANGE?" in line


def test_a_long_value_is_cut():
    """A line stays readable."""
    (line,) = problems(environ=MINIMAL | {"SIDECAR_QUEUE": "x" * 5000})
    assert len(line) < 200
