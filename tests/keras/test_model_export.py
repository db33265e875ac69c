"""The export of the best model: which one it is, under which name, and after a restart."""

import json
import math

import pytest

from sidecar.errors import SettingsError, TaskError

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras, when it saves
]


@pytest.fixture
def new_export(small, tmp_path):
    """Make exports of a model, and tell them about checkpoints."""
    from sidecar.keras import SidecarEvaluatorModelExport

    model = small.model(is_built=True)

    def new(export="best/m-{epoch:02d}", checkpoints="ckpt-{epoch}", **options):
        made = SidecarEvaluatorModelExport(str(tmp_path / export), str(tmp_path / checkpoints), **options)
        made.set_model(model)
        return made

    return new


def evaluated(export, name, **logs):
    """Let an export see one evaluation."""
    if name is not None:
        export.set_checkpoint(name, None)
    export.on_test_begin()
    export.on_test_end(logs)


def exported(tmp_path):
    return sorted(path.name for path in (tmp_path / "best").glob("[!.]*"))


def test_better_models_are_exported(new_export, tmp_path, small):
    """Under the number of the checkpoint that was evaluated; the default metric is the loss."""
    export = new_export()
    for name, loss in (("ckpt-2", math.nan), ("ckpt-3", 0.5), ("ckpt-4", 0.6), ("ckpt-5", math.nan), ("ckpt-12", 0.4)):
        evaluated(export, name, loss=loss, accuracy=0.1)
    assert exported(tmp_path) == ["m-03.keras", "m-12.keras"]
    loaded = small.keras.models.load_model(tmp_path / "best" / "m-12.keras")
    assert all(map(small.np.array_equal, loaded.get_weights(), export.model.get_weights()))
    assert not list((tmp_path / "best").glob(".tmp*"))


@pytest.mark.parametrize("verbose", [0, 1])
def test_messages_are_printed_as_by_keras(verbose, new_export, capsys):
    """Only if `verbose` asks for them."""
    export = new_export(verbose=verbose)
    for name, loss in (("ckpt-1", 0.5), ("ckpt-2", 0.6)):
        evaluated(export, name, loss=loss)
    lines = capsys.readouterr().out.splitlines()
    assert [("m-01.keras" in line, "0.6" in line) for line in lines] == [(True, False), (False, True)][: 2 * verbose]


def test_the_best_value_begins_anew_with_other_data(new_export, tmp_path):
    """In one process and after a restart; a worse number of other data is no worse model."""
    export = new_export()
    for number, (data, loss) in enumerate((("a", 0.1), ("a", 0.2), ("b", 0.5), ("b", 0.6)), 1):
        export.set_data(data)
        evaluated(export, f"ckpt-{number}", loss=loss)
    assert exported(tmp_path) == ["m-01.keras", "m-03.keras"]
    other = new_export()
    other.set_data("c")
    evaluated(other, "ckpt-6", loss=0.9)
    assert exported(tmp_path)[-1] == "m-06.keras"
    again = new_export()
    again.set_data("c")
    evaluated(again, "ckpt-7", loss=0.95)
    assert exported(tmp_path)[-1] == "m-06.keras"


def test_the_best_value_survives_a_restart(new_export, tmp_path):
    """A worse model is not exported by the next process; another metric has its own best value."""
    options = {"monitor": "accuracy", "mode": "max", "save_weights_only": True, "save_freq": "eval"}
    evaluated(new_export(**options), "ckpt-1", loss=0.1, accuracy=0.9)
    evaluated(new_export(**options), "ckpt-2", loss=0.1, accuracy=0.8)
    assert exported(tmp_path) == ["m-01.weights.h5"]
    evaluated(new_export(), "ckpt-3", loss=0.3)
    assert exported(tmp_path) == ["m-01.weights.h5", "m-03.keras"]
    records = [json.loads(path.read_text()) for path in (tmp_path / "best").glob(".best-*.json")]
    assert {record["monitor"]: record["checkpoint"] for record in records} == {"accuracy": "ckpt-1", "loss": "ckpt-3"}


@pytest.mark.parametrize(
    ("checkpoints", "name", "number"),
    [
        ("ckpt-{epoch:04d}", "ckpt-0007", 7),
        ("{epoch:02d}-{val_loss:.2f}.keras", "03-0.25.keras", 3),
        ("w.{epoch}[a].h5", "w.12[a].h5", 12),
        ("model", "other-4.keras", 4),
        ("ckpt-{epoch}", "run/ckpt-9", 9),
        ("ckpt-{epoch}", "without", 1),
    ],
)
def test_numbers_of_all_kinds_of_names(checkpoints, name, number, new_export):
    """Keras 2 knew `ckpt-` only, and crashed at other names."""
    export = new_export(checkpoints=checkpoints)
    export.set_checkpoint(name, None)
    export.on_test_begin()
    assert export.export_index == number - 1


def test_without_an_evaluator_the_newest_file_gives_the_number(new_export, tmp_path):
    """As in Keras 2, which saw no more than the files; without a file it is the first one."""
    export = new_export(checkpoints="ckpts/e-{epoch}.keras")
    export.on_test_begin()
    assert export.export_index == 0
    (tmp_path / "ckpts").mkdir()
    for number in (4, 5):
        (tmp_path / "ckpts" / f"e-{number}.keras").touch()
    export.on_test_begin()
    assert export.export_index == 4


def test_mistakes_are_reported(new_export):
    """A metric that is not there, and a placeholder that is none."""
    with pytest.raises(TaskError, match=r"val_loss.*accuracy, loss"):
        evaluated(new_export(monitor="val_loss"), "ckpt-1", loss=1.0, accuracy=0.5)
    with pytest.raises(SettingsError, match="nothing"):
        evaluated(new_export("best/{nothing}"), "ckpt-1", loss=1.0)
    with pytest.raises(SettingsError, match="ckpt-"):
        new_export(checkpoints="ckpt-{epoch")


def test_an_export_names_the_checkpoint_that_was_evaluated(small, new_evaluator, tmp_path):
    """And not a newer file, which came during the evaluation."""
    from sidecar.keras import SidecarEvaluatorModelExport

    ckpts = tmp_path / "ckpts"
    ckpts.mkdir()

    class SaveMeanwhile(small.keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            small.trained(2).save(ckpts / "e-2.keras")

    small.trained(1).save(ckpts / "e-1.keras")
    export = SidecarEvaluatorModelExport(ckpts / "best" / "m-{epoch}", ckpts / "e-{epoch}.keras")
    new_evaluator(folder=ckpts, callbacks=[SaveMeanwhile(), export], max_evaluations=1).start()
    assert [path.name for path in (ckpts / "best").glob("[!.]*")] == ["m-1.keras"]


def test_an_export_is_never_taken_for_a_checkpoint(new_evaluator, new_export):
    """It must not lie in the checkpoint directory itself."""
    with pytest.raises(SettingsError, match="best"):
        new_evaluator(callbacks=[new_export("m-{epoch}")]).start()
