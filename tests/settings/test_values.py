"""Check each value, and say what to write instead."""

from pathlib import Path

import pytest
from settings.conftest import MINIMAL, problems

from sidecar.settings import check_host, check_name, load


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


@pytest.mark.parametrize(("line", "remedy"), [("true", "write all, or first"), ("false", "write none")])
def test_save_weights_was_a_boolean_once(write, line, remedy):
    """A file of then is told what to write now."""
    (told,) = problems(environ=MINIMAL | write(f"save_weights = {line}"))
    assert told.endswith(f"says whose weights are saved: {remedy}")


def test_http_may_be_an_ipv6_address():
    """Brackets belong to the notation, not to the address to bind."""
    settings = load({"http": "[::1]:0"}, environ=MINIMAL)
    assert (settings.http_host, settings.http_port) == ("::1", 0)


BAD = [
    ("replicas", "two", "'two'", "write a whole number"),
    ("replicas", "0", "'0'", "write 1 or more"),
    ("min_workers", "0", "'0'", "write 1 or more"),
    ("max_workers", "0", "'0'", "write 1 or more"),
    ("keep_states", "1001", "'1001'", "write 1000 or less"),
    ("replicas", "1.5", "'1.5'", "write a whole number"),
    ("beat_seconds", "0", "'0'", "write a number above 0"),
    ("plan_cap_seconds", "inf", "'inf'", "write a finite number"),
    ("stall_factor", "0.5", "'0.5'", "write 1 or more"),
    ("role", "boss", "'boss'", "'worker' or 'chief'"),
    ("queue", "newest", "'newest'", "'every' or 'latest'"),
    ("start", "old", "'old'", "'all' or 'new'"),
    ("save_weights", "true", "'true'", "says whose weights are saved: write all, or first"),
    ("save_weights", "0", "'0'", "says whose weights are saved: write none"),
    ("save_weights", "some", "'some'", "'all', 'first' or 'none'"),
    ("saves_max_bytes", "0", "'0'", "write 1 or more"),
    ("best_metric", "accuracy", "'accuracy'", "write EVAL_SET/METRIC, such as test/accuracy"),
    ("best_metric", "test/", "'test/'", "write EVAL_SET/METRIC, such as test/accuracy"),
    ("export_best", 3, "3", "needs best_metric, by which checkpoints are best: write it, such as test/accuracy"),
    ("export_best", 11, "11", "is more than 10: write a smaller number"),
    ("log_format", "xml", "'xml'", "'console' or 'json'"),
    ("every_steps", "0", "'0'", "write 1 or more"),
    ("keep_free_bytes", "-1", "'-1'", "write 0 or more"),
    ("done_marker", "../DONE", "'../DONE'", "write the name of a file in checkpoint_dir, such as DONE"),
    ("collectives", "mpi", "'mpi'", "'auto', 'ring' or 'nccl'"),
    ("framework", "my-jax", "'my-jax'", "torch"),
    ("wait", "maybe", "'maybe'", "write true or false"),
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


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("tensorboard_parameters", "lr=1", "not JSON"),
        ("tensorboard_parameters", '{"lr": [1]}', "'lr': write a table [tensorboard_parameters]"),
        ("page_links", "Grafana", "not JSON"),
        ("page_links", "[]", "[page_links]"),
        ("page_links", '{"Grafana": "grafana:3000"}', "'Grafana': write the URL"),
        ("page_links", '{"x": "javascript:alert(1)"}', "'x': write the URL"),
        ("page_links", '{"": "https://a"}', "[page_links]"),
        ("page_links", '{"x": 5}', "[page_links]"),
        ("page_url", "worker-0:19108", "write the URL"),
        ("page_url", "http://[::1/", "IPv6"),
        ("page_url", "http://a/\n", "write the URL"),
    ],
)
def test_a_mistake_is_one_sentence(refusal, key, value, shown):
    """Which setting, and what to write."""
    assert shown in refusal(key, value)


def test_links_are_a_table_or_json(tmp_path):
    """In the order in which they are written."""
    (tmp_path / "sidecar.toml").write_text('[page_links]\nGrafana = "https://g/"\n"Our docs" = "http://d:8000/x?y"\n')
    flags = {"checkpoint_dir": tmp_path, "config": tmp_path / "sidecar.toml"}
    links = [("Grafana", "https://g/"), ("Our docs", "http://d:8000/x?y")]
    assert list(load(flags, environ={}).page_links.items()) == links
    environ = {"SIDECAR_PAGE_LINKS": '{"Grafana": "https://g/"}'}
    assert load(flags, environ=environ).page_links == {"Grafana": "https://g/"}


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
