"""Read settings as daemons do, and return how they are refused."""

import pytest

from sidecar.errors import SettingsError
from sidecar.settings import load

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


@pytest.fixture
def refusal(tmp_path):
    """Set a setting by its environment variable; the answer is the one sentence that refuses it and names it."""

    def refusal(key, value):
        with pytest.raises(SettingsError) as raised:
            load({"checkpoint_dir": tmp_path}, environ={f"SIDECAR_{key.upper()}": value})
        text = str(raised.value)
        assert f"SIDECAR_{key.upper()}" in text
        assert "\n" not in text
        return text

    return refusal
