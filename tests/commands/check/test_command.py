"""Report what a daemon could not start with."""

from sidecar.commands.check.command import http
from sidecar.settings import Settings


def test_a_file_of_http_access_that_cannot_be_used_is_a_problem(tmp_path):
    """File and key are named before a daemon is started; a good file adds nothing."""
    file = tmp_path / "web.config.yml"
    settings = Settings(checkpoint_dir=tmp_path, http="127.0.0.1:0", http_access=file)
    file.write_text("basic_auth_users: {ann: password}\n")
    problem, free = http(settings)
    assert (problem.what, problem.ok, free.ok) == ("http", False, True)
    assert f"{file}: basic_auth_users.ann" in problem.text
    file.write_text("{}\n")
    assert [finding.ok for finding in http(settings)] == [True]
