import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from sidecar.commands.options import FLAGS
from sidecar.errors import SettingsError
from sidecar.settings import Settings, check_host, check_name, load

MINIMAL = {"SIDECAR_CHECKPOINT_DIR": "/data/run-7"}


def problems(flags=None, environ=None):
    with pytest.raises(SettingsError) as caught:
        load(flags or {}, environ=environ or {})
    return str(caught.value).splitlines()


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "sidecar.toml"
        path.write_text(text, encoding="utf-8")
        return {"SIDECAR_CONFIG": str(path)}

    return write


@pytest.mark.parametrize("padding", range(0, 80, 7))
def test_no_part_of_a_password_is_shown(write, padding):
    """Also where a value that is not a text is cut before the end of the password."""
    for line in (
        f'remote_write = ["{padding * "x"}", "http://me:{30 * "secret"}@host/"]',
        f'tensorboard_dir = {{{padding * "x"}a = "http://me:{30 * "secret"}@host/"}}',
    ):
        (told,) = problems(environ=MINIMAL | write(line))
        assert "secret" not in told
        assert "http://" in told or padding > 50


def test_defaults_need_only_a_checkpoint_directory():
    """Everything else has a default, and what is derived follows from the directory."""
    settings = load({"checkpoint_dir": Path("/data/run-7")}, environ={})
    assert settings.state_dir == Path("/data/run-7/.sidecar")
    assert settings.run == "run-7"
    assert settings.run_dir == Path("/data/run-7/.sidecar/run-7")
    assert (settings.http_host, settings.http_port) == ("127.0.0.1", 19108)
    assert settings.ports == range(21000, 22000)
    assert settings.worker_python == Path(sys.executable)
    assert settings.threads == 2


def test_settings_do_not_change():
    """The settings of a daemon hold for its life."""
    settings = load({}, environ=MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        settings.replicas = 2


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


def test_relative_paths_start_at_the_current_directory(tmp_path, monkeypatch):
    """Paths are absolute once read, whichever source they came from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    settings = load({"checkpoint_dir": "ckpts"}, environ={"SIDECAR_STATE_DIR": "~/state"})
    assert (settings.checkpoint_dir, settings.state_dir) == (tmp_path / "ckpts", Path("/home/me/state"))


def test_the_run_is_named_after_what_a_link_points_to(tmp_path):
    """A `current` link names the run that it points to."""
    (tmp_path / "run-9").mkdir()
    (tmp_path / "current").symlink_to("run-9")
    assert load({"checkpoint_dir": tmp_path / "current"}, environ={}).run == "run-9"


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


@pytest.mark.parametrize(("line", "remedy"), [("true", "write all, or first"), ("false", "write none")])
def test_save_weights_was_a_boolean_once(write, line, remedy):
    """A file of then is told what to write now."""
    (told,) = problems(environ=MINIMAL | write(f"save_weights = {line}"))
    assert told.endswith(f"says whose weights are saved: {remedy}")


def test_a_pattern_replaces_the_formats():
    """Only one of the two says what a checkpoint is."""
    environ = MINIMAL | {"SIDECAR_CHECKPOINT_PATTERN": "m-*"}
    assert load({}, environ=environ).checkpoint_pattern == "m-*"
    (problem,) = problems(environ=environ | {"SIDECAR_FORMATS": "keras"})
    assert "checkpoint_pattern" in problem.lower()


def test_a_group_may_not_be_smaller_than_the_smallest():
    """Else none could form."""
    with pytest.raises(SettingsError, match=r"min_workers = 3"):
        load({"min_workers": 3, "max_workers": 2}, environ=MINIMAL)
    assert load({"min_workers": 64}, environ=MINIMAL).max_workers == 64


def test_http_may_be_an_ipv6_address():
    """Brackets belong to the notation, not to the address to bind."""
    settings = load({"http": "[::1]:0"}, environ=MINIMAL)
    assert (settings.http_host, settings.http_port) == ("::1", 0)


BAD = [
    ("replicas", "two", "'two'", "valid integer"),
    ("replicas", "0", "'0'", "greater than or equal to 1"),
    ("min_workers", "0", "'0'", "greater than or equal to 1"),
    ("max_workers", "0", "'0'", "greater than or equal to 1"),
    ("keep_states", "1001", "'1001'", "less than or equal to 1000"),
    ("replicas", "1.5", "'1.5'", "valid integer"),
    ("beat_seconds", "0", "'0'", "greater than 0"),
    ("plan_cap_seconds", "inf", "'inf'", "finite number"),
    ("stall_factor", "0.5", "'0.5'", "greater than or equal to 1"),
    ("role", "boss", "'boss'", "'worker' or 'chief'"),
    ("queue", "newest", "'newest'", "'every' or 'latest'"),
    ("start", "old", "'old'", "'all' or 'new'"),
    ("save_weights", "true", "'true'", "says whose weights are saved: write all, or first"),
    ("save_weights", "0", "'0'", "says whose weights are saved: write none"),
    ("save_weights", "some", "'some'", "'all', 'first' or 'none'"),
    ("saves_max_bytes", "0", "'0'", "greater than or equal to 1"),
    ("best_metric", "accuracy", "'accuracy'", "write EVAL_SET/METRIC, such as test/accuracy"),
    ("best_metric", "test/", "'test/'", "write EVAL_SET/METRIC, such as test/accuracy"),
    ("export_best", 3, "3", "needs best_metric, by which checkpoints are best: write it, such as test/accuracy"),
    ("export_best", 11, "11", "is more than 10: write a smaller number"),
    ("log_format", "xml", "'xml'", "'console' or 'json'"),
    ("every_steps", "0", "'0'", "greater than or equal to 1"),
    ("keep_free_bytes", "-1", "'-1'", "greater than or equal to 0"),
    ("done_marker", "../DONE", "'../DONE'", "write the name of a file in checkpoint_dir, such as DONE"),
    ("collectives", "mpi", "'mpi'", "'auto', 'ring' or 'nccl'"),
    ("framework", "my-jax", "'my-jax'", "torch"),
    ("wait", "maybe", "'maybe'", "valid boolean"),
    ("run", "my run", "'my run'", "use letters, digits"),
    ("run", "..", "'..'", "use letters, digits"),
    ("node", "a/b", "'a/b'", "use letters, digits"),
    ("task", "my_eval.py", "'my_eval.py'", "module:attr or path/file.py:attr"),
    ("task", ":task", "':task'", "module:attr or path/file.py:attr"),
    ("host", "0.0.0.0", "'0.0.0.0'", "such as 10.0.0.7"),
    ("host", "http://a", "'http://a'", "such as 10.0.0.7"),
    ("host", "a:80", "'a:80'", "such as 10.0.0.7"),
    ("port_range", "21000", "'21000'", "such as 21000-21999"),
    ("port_range", "30000-21000", "'30000-21000'", "such as 21000-21999"),
    ("port_range", "80-2000", "'80-2000'", "1024 <= FIRST"),
    ("port_range", "21000-70000", "'21000-70000'", "LAST <= 65535"),
    ("port_range", "21000-21000", "'21000-21000'", "has 1 ports"),
    ("http", "19108", "'19108'", "such as 127.0.0.1:19108"),
    ("http", "a:99999", "'a:99999'", "such as 127.0.0.1:19108"),
    ("http", "::1:80", "'::1:80'", "[::1]:19108"),
    ("http", "[a]:80", "'[a]:80'", "[::1]:19108"),
    ("worker_python", "/no/python", "'/no/python'", "/opt/venv/bin/python"),
    ("worker_env", "A=1", "'A=1'", "not JSON"),
    ("worker_env", '["A"]', '["A"]', '{"OMP_NUM_THREADS": "1"'),
    ("worker_env", '{"A": true}', '{"A": true}', '{"OMP_NUM_THREADS": "1"'),
    ("devices", "tpu", "'tpu'", "cpu, gpu, or the GPUs"),
    ("devices", "-1", "'-1'", "cpu, gpu, or the GPUs"),
    ("devices", "0,0", "'0,0'", "list at least as many different ones"),
    ("step_pattern", "(", "'('", "not a regular expression"),
    ("step_pattern", r"\d+", r"'\\d+'", "has 0 groups: put exactly one"),
    ("formats", "keras,hdf", "'keras,hdf'", "write some of tf_object, keras, hdf5"),
    ("checkpoint_pattern", "models/*", "'models/*'", "such as model-*.joblib"),
    ("checkpoint_pattern", "m.{pkl,ubj}", "'m.{pkl,ubj}'", "no braces"),
    ("checkpoint_pattern", "model-* ", "'model-* '", "such as model-*.joblib"),
    ("checkpoint_pattern", ".hidden*", "'.hidden*'", "such as model-*.joblib"),
    ("complete_marker", "{name}", "'{name}'", "such as {name}.STABLE"),
    ("complete_marker", "{name}/", "'{name}/'", "such as {name}.STABLE"),
    ("complete_marker", "/data/DONE", "'/data/DONE'", "such as {name}.STABLE"),
    ("complete_marker", "a/{name}", "'a/{name}'", "such as {name}.STABLE"),
    ("complete_marker", "{name}/../x", "'{name}/../x'", "such as {name}.STABLE"),
    ("complete_marker", "..", "'..'", "such as {name}.STABLE"),
    ("file_events", "maybe", "'maybe'", "'auto', 'on' or 'off'"),
    ("state_dir", "/data/run-7", "'/data/run-7'", "name a folder in or beside it"),
    ("state_dir", "/data", "'/data'", "name a folder in or beside it"),
    ("checkpoint_dir", "~nobody-here/x", "'~nobody-here/x'", "write the path in full"),
    ("lease_seconds", "5", "'5'", "raise it to 6"),
    ("backoff_last_seconds", "0.5", "'0.5'", "at least backoff_first_seconds (1)"),
]


@pytest.mark.parametrize(("name", "text", "shown", "remedy"), BAD, ids=[f"{name}={text}" for name, text, *_ in BAD])
def test_a_bad_value_is_shown_with_its_origin_and_remedy(name, text, shown, remedy):
    """One line says where it came from, what it is and what to write."""
    (line,) = problems(environ=MINIMAL | {f"SIDECAR_{name.upper()}": text})
    assert line.startswith(f"environment SIDECAR_{name.upper()}: ")
    assert shown in line
    assert remedy in line


@pytest.mark.parametrize(
    ("line", "shown", "remedy"),
    [
        ("replicas = true", "key replicas: True", "write a number"),
        ("chief_nodes = ['a', 3]", "key chief_nodes[1]: 3", "valid string"),
        ("chief_nodes = ['']", "key chief_nodes: ['']", "names or globs"),
        ("http_hosts = ['a.example:80']", "key http_hosts: ['a.example:80']", "without port"),
        ("devices = []", "key devices: []", "cpu, gpu, or the GPUs"),
        ("devices = [true]", "key devices: [True]", "cpu, gpu, or the GPUs"),
        ("worker_env = {A = 1.5}", "key worker_env: {'A': 1.5}", '{"OMP_NUM_THREADS": "1"'),
        ("checkpoint_dir = 3", "key checkpoint_dir: 3", "path"),
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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("settle_seconds", ("quiet_seconds", "group_settle_seconds")),
        ("proposal_patience_seconds", ("proposal_turn_seconds", "copy_turn_seconds", "result_turn_seconds")),
    ],
)
def test_a_setting_that_was_split_is_refused_with_its_successors(write, old, new):
    """An old file or variable must not lose its meaning without a word."""
    environ = MINIMAL | write(f"{old} = 1") | {f"SIDECAR_{old.upper()}": "1"}
    in_environment, in_file = sorted(problems({}, environ=environ))
    assert in_file.startswith(f"file {environ['SIDECAR_CONFIG']}, key {old}: ")
    assert in_environment.startswith(f"environment SIDECAR_{old.upper()}: ")
    assert all(name in in_file and f"SIDECAR_{name.upper()}" in in_environment for name in new)


def test_durations_follow_the_one_that_they_are_derived_from():
    """A longer lease, beat or visibility gives longer turns, groups and pins, unless these are given."""
    defaults = load({}, environ=MINIMAL)
    assert (defaults.group_settle_seconds, defaults.copy_turn_seconds, defaults.pin_wait_seconds) == (3.0, 10.0, 60.0)
    given = {"LEASE_SECONDS": "20", "VISIBILITY_SECONDS": "5", "BEAT_SECONDS": "4", "COPY_TURN_SECONDS": "7"}
    settings = load({}, environ=MINIMAL | {f"SIDECAR_{name}": value for name, value in given.items()})
    of_the_lease = ("proposal_turn", "result_turn", "run_lost", "suspended_timeout", "loop_timeout")
    assert {getattr(settings, f"{name}_seconds") for name in of_the_lease} == {20.0}
    of_the_storage = ("corrupt_after", "vanished_after", "pin_wait")
    assert {getattr(settings, f"{name}_seconds") for name in of_the_storage} == {5.0}
    assert (settings.group_settle_seconds, settings.copy_turn_seconds) == (6.0, 7.0)
    assert settings.quiet_seconds == defaults.quiet_seconds


def test_all_problems_are_told_at_once(write):
    """Whoever corrects a configuration wants to do it once."""
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


def test_a_default_that_another_setting_contradicts_is_named_as_one():
    """Nobody gave the lease, so the line says that it is the default, and names the beat."""
    (line,) = problems(environ=MINIMAL | {"SIDECAR_BEAT_SECONDS": "5"})
    assert line.startswith("default of lease_seconds: 10.0: must be at least 3 x beat_seconds (5): raise it to 15")


def test_a_bad_setting_raises_no_second_complaint():
    """A setting that depends on a bad one is not judged by a guess of it."""
    (line,) = problems(environ=MINIMAL | {"SIDECAR_BEAT_SECONDS": "-1", "SIDECAR_LEASE_SECONDS": "1"})
    assert line.startswith("environment SIDECAR_BEAT_SECONDS: ")


def test_a_directory_that_names_no_run_asks_for_one(tmp_path):
    """The default run name obeys the same rule as a given one."""
    (line,) = problems({"checkpoint_dir": tmp_path / "my run"})
    assert line.startswith("default of run: 'my run': ")


@pytest.mark.parametrize(
    ("replicas", "ports", "fits"), [(1, "21000-21001", True), (2, "21000-21003", True), (2, "21000-21002", False)]
)
def test_every_replica_needs_two_ports(replicas, ports, fits):
    """An active worker and its standby hold a port each."""
    flags = {"checkpoint_dir": "/data", "replicas": replicas, "port_range": ports}
    if fits:
        assert len(load(flags, environ={}).ports) == 2 * replicas
    else:
        (line,) = problems(flags)
        assert line.startswith("option --port-range: '21000-21002': has 3 ports")
        assert "widen it" in line


def test_more_replicas_than_listed_gpus_are_refused():
    """A GPU takes one process."""
    (line,) = problems({"checkpoint_dir": "/data", "replicas": 3}, environ={"SIDECAR_DEVICES": "0,1"})
    assert line.startswith("environment SIDECAR_DEVICES: '0,1': a GPU takes one process")


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


def test_the_task_is_asked_for_where_it_is_needed():
    """A chief runs without one; a command that needs it gets the remedy."""
    settings = load({}, environ=MINIMAL)
    with pytest.raises(SettingsError, match=r"--task\b.*SIDECAR_TASK.*sidecar\.toml"):
        settings.require_task()
    assert load({"task": "a.b:task"}, environ=MINIMAL).require_task() == "a.b:task"


def test_every_flag_gives_a_setting():
    """The table that error messages use cannot name a setting that does not exist."""
    assert set(FLAGS.values()) <= set(Settings.model_fields)


@pytest.mark.parametrize("name", ["a", "worker-1", "Node_2.local", "x" * 128])
def test_names_that_any_storage_takes(name):
    """Host names and TF_CONFIG tasks pass unchanged."""
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "-x", "a b", "a/b", "ä", "a\n", "x" * 129])
def test_names_that_some_storage_does_not_take(name):
    """A name becomes a file name, so it can neither leave its folder nor hide in it."""
    with pytest.raises(ValueError, match="use letters, digits"):
        check_name(name)


@pytest.mark.parametrize("host", ["", "::", "0.0.0.0", "a b", "a\n", "-a", "[10.0.0.1]"])
def test_hosts_that_nobody_can_dial(host):
    """Others are told this host, so it must mean this machine to them."""
    with pytest.raises(ValueError, match="cannot be dialled"):
        check_host(host)


def test_importing_the_settings_imports_no_framework():
    """The daemon's start-up pays for neither a framework nor numpy."""
    code = "import sidecar.settings, sys; print(*{'tensorflow', 'keras', 'torch', 'numpy', 'typer'} & set(sys.modules))"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
