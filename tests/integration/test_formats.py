"""One directory with a checkpoint of each format: each is held, restored, evaluated, with Keras' numbers."""

import pytest

pytestmark = pytest.mark.tensorflow

FORMS = {"": 10, ".keras": 20, ".weights.h5": 30, ".weights.json": 40, ".h5": 50, "-exported": 60}


def test_every_format_is_evaluated(sidecar, writer, tmp_path):
    """With full verification, and with steps from the names where the checkpoint itself holds none."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    saved = [writer.save(folder, step, form=form)[0] for form, step in FORMS.items()]
    config = tmp_path / "sidecar.toml"
    config.write_text("verify = 'full'\nstep_pattern = 'm-([0-9]+)'\n")
    daemon = sidecar.run(folder, "--config", config, "--no-wait", task="plain.py")
    done = daemon.wait()
    assert done.code == 0, done.said
    found = {entry["checkpoint"]: entry for entry in daemon.history()}
    assert sorted(found) == sorted(each["name"] for each in saved)
    for each in saved:
        entry = found[each["name"]]
        assert (entry["status"], entry["step"]) == ("succeeded", each["step"])
        assert entry["metrics"]["test"]["accuracy"]["value"] == each["correct"] / each["examples"]
        assert entry["metrics"]["test"]["loss"]["value"] == pytest.approx(each["loss"], rel=1e-5)
    assert list((folder / ".sidecar" / "ckpts" / "pins").iterdir()) == []
