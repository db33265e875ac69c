"""Numbers are compared as what they are: small ones by their size, and those of other data not at all."""

import json

import numpy as np
import pytest

TASK = "numpy_replaced.py"
SETTINGS = {
    "SIDECAR_FRAMEWORK": "python",
    "SIDECAR_CHECKPOINT_PATTERN": "m-*.txt",
    "SIDECAR_EXPORT_BEST": "1",
}


def save(folder, number, noise):
    """Save a model as a careful trainer does."""
    folder.mkdir(exist_ok=True)
    (folder / ".part").write_text(str(noise))
    (folder / ".part").rename(folder / f"m-{number}.txt")
    return {"name": f"m-{number}.txt"}


def replace_data(folder, kind):
    """Replace the file of the eval set, by one rename."""
    generator = np.random.default_rng(int(kind != "first"))
    x = generator.normal(size=(400, 3))
    y = x.argmax(1)
    if kind == "noise":
        y = generator.integers(0, 3, 400)
    if kind == "easy":
        x[:, 0] += np.where(np.arange(400) % 2, 9, -9)
        y = x.argmax(1)
    if kind == "mse":
        x = np.random.default_rng(0).normal(size=(500, 1))
        y = x[:, 0] * 3
    folder.mkdir(exist_ok=True)
    np.savez(folder / "part.npz", x=x, y=y)
    (folder / "part.npz").rename(folder / "data.npz")
    return x, y


def accuracy(data, noise):
    """Return what a plain loop finds."""
    x, y = data
    return float(((x + noise * np.sin(999 * x)).argmax(1) == y).mean())


def linked(daemon):
    """The checkpoint to which `exports/best` leads."""
    link = daemon.run_dir / "exports" / "best"
    return link.readlink().name.split("@")[0] if link.is_symlink() else None


@pytest.mark.nightly
@pytest.mark.parametrize(
    "replicas", ["1", pytest.param("2", marks=pytest.mark.nightly), pytest.param("3", marks=pytest.mark.nightly)]
)
def test_a_small_error_that_is_144_times_smaller_is_better(sidecar, tmp_path, replicas):
    """By more than noise; its difference is that of the published numbers."""
    folder, data = tmp_path / "ckpts", tmp_path / "data"
    replace_data(data, "mse")
    saved = save(folder, 1, 1.2e-3)
    daemon = sidecar.run(
        folder,
        *("--replicas", replicas),
        task=TASK,
        DATA=str(data),
        KIND="mse",
        SIDECAR_BEST_METRIC="test/mse",
        SIDECAR_BEST_BY="significant",
        **SETTINGS,
    )
    daemon.evaluated(saved)
    daemon.until(lambda: linked(daemon) == "m-1.txt", "an export")
    numbers = [daemon.evaluated(saved)["m-1.txt"]["metrics"]["test"]["mse"]["value"]]
    for number, noise in ((2, 1e-4), (3, 9e-5)):
        row = daemon.evaluated(save(folder, number, noise))[f"m-{number}.txt"]
        numbers.append(row["metrics"]["test"]["mse"]["value"])
        daemon.until(lambda number=number: linked(daemon) == f"m-{number}.txt", "the link moves")
    assert numbers[0] > 100 * numbers[1] > 100 * numbers[2]
    records = [json.loads(path.read_text()) for path in (daemon.run_dir / "comparisons").iterdir()]
    found = {(record["new"], record["old"]): record for record in records}
    first = found[2, 1]
    assert first["better"]
    assert first["difference"] == pytest.approx(numbers[1] - numbers[0], rel=1e-12)
    assert first["difference"] == pytest.approx(-6.69e-07, rel=1e-2)
    assert first["lower"] < first["difference"] < first["upper"] < 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("replicas", "kind"),
    [
        ("1", "arrays"),
        ("2", "files"),
        pytest.param("3", "arrays", marks=pytest.mark.nightly),
        pytest.param("1", "generator", marks=pytest.mark.nightly),
        pytest.param("2", "generator", marks=pytest.mark.nightly),
    ],
)
def test_replaced_data_are_read_and_begin_a_new_best(sidecar, tmp_path, replicas, kind):
    """While the daemon runs, and at its next start: numbers, result, log, history, exports and early stop say so."""
    folder, place = tmp_path / "ckpts", tmp_path / "data"
    data, saved = replace_data(place, "first"), save(folder, 1, 0.1)

    def run(last):
        return sidecar.run(
            folder,
            *("--replicas", replicas),
            task=TASK,
            DATA=str(place),
            KIND=kind,
            SIDECAR_BEST_METRIC="test/accuracy",
            SIDECAR_STOP_AFTER_STEP=last,
            **SETTINGS,
        )

    def number(daemon, saved):
        row = daemon.evaluated(saved)[saved["name"]]
        return row["metrics"]["test"]["accuracy"]["value"], row["changed"]

    daemon = run("3")
    assert number(daemon, saved) == (accuracy(data, 0.1), [])
    daemon.until(lambda: linked(daemon) == "m-1.txt", "an export")
    noise = replace_data(place, "noise")
    assert number(daemon, save(folder, 2, 0.1)) == (accuracy(noise, 0.1), ["test"])
    assert accuracy(noise, 0.1) < 0.5 < accuracy(data, 0.1)
    assert number(daemon, save(folder, 3, 0.1)) == (accuracy(noise, 0.1), [])
    assert daemon.process.wait(240) == 0
    assert linked(daemon) == "m-2.txt"
    assert [event["checkpoint"] for event in daemon.log("eval_set_changed")] == ["m-2.txt"]
    easy = replace_data(place, "easy")
    saved = save(folder, 4, 0.4)
    again = run("4")
    assert number(again, saved) == (accuracy(easy, 0.4), ["test"])
    assert again.process.wait(240) == 0
    assert linked(again) == "m-4.txt"
    assert sorted(path.name.split("@")[0] for path in (again.run_dir / "exports").glob("*@*")) == ["m-2.txt", "m-4.txt"]
    assert [event["checkpoint"] for event in again.log("eval_set_changed")] == ["m-4.txt"]
