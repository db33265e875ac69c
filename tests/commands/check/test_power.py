"""`sidecar check` tells what the newest evaluations could show."""

from sidecar.commands.check.power import power
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.settings import Settings


def test_pairs_tell_the_power(compared):
    """The 60 of 1,000 examples that changed, whose difference is seen with 2.8 standard errors."""
    settings = Settings(checkpoint_dir=compared, task="my_eval.py:task")
    (found,) = power(settings, StorageTimeout(10.0, "here"))
    assert "1,000 examples, of which 6.0% changed" in found.text
    assert "show a difference of 0.021 in 80 % of all cases; for 0.011 you need 4,000" in found.text


def test_a_new_run_shows_nothing(tmp_path):
    """Nor does a directory without a run."""
    root = tmp_path / "ckpts" / ".sidecar" / "ckpts"
    root.mkdir(parents=True)
    settings = Settings(checkpoint_dir=tmp_path / "ckpts", task="my_eval.py:task")
    assert list(power(settings, StorageTimeout(10.0, "here"))) == []
    open_run(PosixStorage(root), 0.0)
    assert list(power(settings, StorageTimeout(10.0, "here"))) == []
