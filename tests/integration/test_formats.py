"""One directory with a checkpoint of each format: each is held, restored, evaluated, with Keras' numbers."""

from pathlib import Path

import pytest
from orbax_training import has_orbax

pytestmark = [pytest.mark.tensorflow, pytest.mark.nightly]

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


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_damaged_ones_are_given_up_and_the_rest_goes_on(sidecar, writer, tmp_path):
    """With full verification no worker ever sees them; journal and log say which file and tensor, what was expected."""
    folder = tmp_path / "ckpts"
    first, second = writer.save(folder, 10, 20)
    saved = {form: writer.save(folder, 30, form=form)[0]["name"] for form in (".keras", "-exported")}
    damaged = {
        first["name"]: (f"{first['name']}.data-00000-of-00001", ": the tensor ", ", the index says "),
        saved[".keras"]: (saved[".keras"], ": model.weights.h5 (", ", the zip table says "),
        saved["-exported"]: ("variables/variables.data-00000-of-00001", ": the tensor ", ", the index says "),
    }
    for name, (file, _, _) in damaged.items():
        flip(folder / file if file.startswith(name) else folder / name / file)
    daemon = sidecar.run(folder, "--no-wait", task="plain.py", SIDECAR_VERIFY="full")
    assert daemon.wait().code == 1
    found = {entry["checkpoint"]: entry for entry in daemon.history()}
    assert found.pop(second["name"])["status"] == "succeeded"
    told = {line["checkpoint"]: line["reason"] for line in daemon.log("checkpoint_settled")}
    assert found.keys() == damaged.keys() == told.keys()
    for name, (file, part, expected) in damaged.items():
        assert found[name]["status"] == "corrupt"
        assert found[name]["message"] == told[name]
        assert file.rpartition("/")[2] + part in told[name]
        assert " has the checksum " in told[name]
        assert expected in told[name]


def test_a_folder_for_each_epoch(sidecar, writer, tmp_path):
    """Each is found with `checkpoint_glob`, held, evaluated with Keras' numbers, and named by its path."""
    folder = tmp_path / "ckpts"
    forms = {"": 10, ".keras": 20, "-exported": 30} | ({"orbax": 40} if has_orbax else {})
    expected = {}
    for form, step in forms.items():
        (folder / f"epoch_{step}").mkdir(parents=True)
        (saved,) = writer.save(folder / f"epoch_{step}", step, form=form)
        expected[f"epoch_{step}/{saved['name']}"] = saved
    daemon = sidecar.run(
        *(folder, "--no-wait"),
        task="plain.py",
        SIDECAR_CHECKPOINT_GLOB="epoch_*/*",
        SIDECAR_STEP_PATTERN="epoch_([0-9]+)/",
    )
    done = daemon.wait()
    assert done.code == 0, done.said
    found = {entry["checkpoint"]: entry for entry in daemon.history()}
    assert found.keys() == expected.keys()
    for name, saved in expected.items():
        entry = found[name]
        assert (entry["status"], entry["step"]) == ("succeeded", saved["step"])
        assert entry["metrics"]["test"]["accuracy"]["value"] == saved["correct"] / saved["examples"]
        assert entry["metrics"]["test"]["loss"]["value"] == pytest.approx(saved["loss"], rel=1e-5)
    evaluations = daemon.run_dir / "evaluations"
    assert {each.name.partition("@")[0] for each in evaluations.iterdir()} == {
        name.replace("/", "%2F") for name in expected
    }
    assert list((daemon.run_dir / "pins").iterdir()) == []
    told = sidecar.command("eval", folder, "--task", f"{Path(__file__).parent / 'tasks' / 'plain.py'}:task")
    assert told.code == 2
    assert 'checkpoint_glob = "epoch_*/*"' in told.sentence
