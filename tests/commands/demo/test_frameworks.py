"""Say which package a demo lacks."""

from dataclasses import replace

import pytest


def test_missing_package_is_told_with_its_remedy(tmp_path):
    """Before anything is made: which packages, for which interpreter, and the command that installs them."""
    from sidecar.commands.demo import run
    from sidecar.commands.demo.frameworks import FRAMEWORKS
    from sidecar.errors import SettingsError

    missing = replace(FRAMEWORKS["torch"], packages={"torch": "no_such_framework", "scikit-learn": "no_such_sklearn"})
    with pytest.raises(SettingsError, match="torch and scikit-learn") as raised:
        run.run(tmp_path / "demo", keep=False, checkpoints=1, framework=missing)
    assert raised.value.exit_code == 2
    assert not (tmp_path / "demo").exists()
