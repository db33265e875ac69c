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


def test_a_damaged_one_is_given_up_and_the_rest_goes_on(sidecar, writer, tmp_path):
    """With full verification no worker ever sees it; the journal says which tensor."""
    folder = tmp_path / "ckpts"
    first, second = writer.save(folder, 10, 20)
    data = folder / f"{first['name']}.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    daemon = sidecar.run(folder, "--no-wait", task="plain.py", SIDECAR_VERIFY="full")
    assert daemon.wait().code == 1
    found = {entry["checkpoint"]: entry for entry in daemon.history()}
    assert (found[first["name"]]["status"], found[second["name"]]["status"]) == ("corrupt", "succeeded")
    assert f"{data.name}: the tensor " in found[first["name"]]["message"]
    assert ", the index says " in found[first["name"]]["message"]
