"""The stored best value survives a restart, and damage to it does no harm."""

import pytest

from sidecar.keras.best_value import BestValue


@pytest.fixture
def best(tmp_path):
    """A value of which one export exists."""
    (tmp_path / "m-3.keras").touch()
    return BestValue(tmp_path, str(tmp_path / "m-{epoch}.keras"), "loss", "min")


def test_the_value_is_read_to_the_bit(best, tmp_path):
    """0.1 has no end in binary."""
    assert best.read() is None
    best.write(0.1, tmp_path / "m-3.keras", "ckpt-3")
    assert best.read() == 0.1
    assert BestValue(tmp_path, str(tmp_path / "m-{epoch}.keras"), "accuracy", "max").read() is None


def test_a_value_of_other_data_does_not_count(best, tmp_path):
    """Where both are known: older files do not say it, and neither do evaluations by Keras itself."""
    best.write(0.1, tmp_path / "m-3.keras", "ckpt-3", "a")
    assert [best.read("a"), best.read("b"), best.read()] == [0.1, None, 0.1]
    best.write(0.1, tmp_path / "m-3.keras", "ckpt-3")
    assert best.read("b") == 0.1


def test_a_deleted_export_does_not_count(best, tmp_path):
    """Somebody wants to begin again."""
    best.write(0.1, tmp_path / "m-3.keras", "ckpt-3")
    (tmp_path / "m-3.keras").unlink()
    assert best.read() is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"value": 3}', b'{"value": "x"}', b"[" * 60_000, b"\xff"])
def test_a_damaged_record_is_reported(best, tmp_path, content, caplog):
    """And the next model counts as the best."""
    best.write(0.1, tmp_path / "m-3.keras", "ckpt-3")
    next(tmp_path.glob(".best-*")).write_bytes(content)
    assert best.read() is None
    assert ".best-" in caplog.text


def test_a_planted_link_is_not_followed(best, tmp_path):
    """The file is written anew, and the target stays."""
    best.write(0.1, tmp_path / "m-3.keras", None)
    record = next(tmp_path.glob(".best-*"))
    target = tmp_path / "target"
    target.write_text("precious")
    record.unlink()
    record.symlink_to(target)
    assert best.read() is None
    best.write(0.2, tmp_path / "m-3.keras", None)
    assert (best.read(), target.read_text()) == (0.2, "precious")
