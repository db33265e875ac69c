"""The settings decide where the state lies, and which storage is opened for it."""

from sidecar.commands.state_storage import state_storage
from sidecar.settings import Settings


def test_a_directory_is_opened_as_such_and_tells_of_answers(tmp_path):
    """Nothing is made before the first record, which lies in the folder of the run."""
    answers = []
    settings = Settings(checkpoint_dir=tmp_path / "ckpts", state_dir=tmp_path / "state", run="a")
    storage = state_storage(settings, lambda: answers.append(1))
    assert not settings.state_dir.exists()
    storage.create("run.json", b"{}")
    assert ((tmp_path / "state" / "a" / "run.json").read_bytes(), answers) == (b"{}", [1])
