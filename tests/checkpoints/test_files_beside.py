"""Files that callbacks and loggers write beside the checkpoints, and that are not evaluated as well."""

import shutil

import pytest
from checkpoints.tables import bundle_entry, bundle_header, index_of

EVERYWHERE = ("*", "*/*")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"

MODEL = (f"model/kernel{_VALUE}", f"save_counter{_VALUE}")
BACKUP = (f"ckpt_saved_batch{_VALUE}", f"ckpt_saved_epoch{_VALUE}", *MODEL, f"train_counter{_VALUE}")
"""Keys as tf_keras' BackupAndRestore writes them into `chief/ckpt-N`, and `worker_N/ckpt-N`."""
ITERATOR = ("iterator/.ATTRIBUTES/ITERATOR_STATE", f"save_counter{_VALUE}", f"step{_VALUE}")


@pytest.fixture
def keras(recorded, root):
    """Puts the file of Keras at a path."""
    source = recorded.kinds / "weights_latest" / "m-5.weights.h5"

    def put(path):
        (root / path).parent.mkdir(exist_ok=True)
        shutil.copy(source, root / path)

    return put


def put_object(folder, name, keys):
    folder.mkdir(exist_ok=True)
    entries = sorted((key.encode(), bundle_entry(size=4)) for key in keys)
    (folder / f"{name}.index").write_bytes(index_of([(b"", bundle_header()), *entries]))
    (folder / f"{name}.data-00000-of-00001").write_bytes(b"\0" * 4)


def names(scan):
    return sorted(found.checkpoint.name for found in scan.found)


def test_the_backup_of_keras_3_is_left_out_beside_checkpoints(keras, root, new_catalog):
    """In the same folder, and in a sub-folder: it has the values of the newest checkpoint, and the reason is told."""
    for path in ("m-1.weights.h5", "latest.weights.h5", "backup/latest.weights.h5"):
        keras(path)
    for folder in (root, root / "backup"):
        (folder / "training_metadata.json").write_text('{"epoch": 2, "batch": 0}')
    scan = new_catalog(quiet_seconds=0, checkpoint_glob=EVERYWHERE).scan()
    assert names(scan) == ["m-1.weights.h5"]
    assert [name for name, why in scan.left_out if "BackupAndRestore" in why] == [
        "latest.weights.h5",
        "backup/latest.weights.h5",
    ]


def test_a_file_of_the_same_name_is_a_checkpoint(keras, new_catalog):
    """Without the file that only the callback writes, training saved it itself."""
    keras("m-1.weights.h5")
    keras("latest.weights.h5")
    assert names(new_catalog(quiet_seconds=0).scan()) == ["latest.weights.h5", "m-1.weights.h5"]


@pytest.mark.parametrize(("glob", "path"), [(["*"], ""), (["backup/*"], "backup/")])
def test_a_backup_that_the_user_watches_is_evaluated(keras, root, new_catalog, glob, path):
    """As the only file of the directory, or in a folder that the glob names."""
    keras(f"{path}latest.weights.h5")
    (root / f"{path}training_metadata.json").write_text("{}")
    if path:
        keras("backup/m-1.weights.h5")
        (root / "backup" / "m-1.weights.h5").unlink()
    assert names(new_catalog(quiet_seconds=0, checkpoint_glob=tuple(glob)).scan()) == [f"{path}latest.weights.h5"]


def test_the_backup_of_keras_2_is_left_out(root, new_catalog):
    """It is known by its keys, wherever the chief and the workers keep it."""
    put_object(root, "ckpt-1", MODEL)
    for folder in ("chief", "worker_1"):
        put_object(root / folder, "ckpt-7", BACKUP)
    scan = new_catalog(quiet_seconds=0, checkpoint_glob=EVERYWHERE).scan()
    assert names(scan) == ["ckpt-1"]
    assert sorted(name for name, _ in scan.left_out) == ["chief/ckpt-7", "worker_1/ckpt-7"]
    assert names(new_catalog(quiet_seconds=0, checkpoint_glob=("chief/*",)).scan()) == ["chief/ckpt-7"]


def test_backups_alone_are_evaluated_one_after_the_other(root, new_catalog):
    """Two of them, as between the save of the second and the deletion of the first, do not lie beside each other."""
    for number in (1, 2):
        put_object(root, f"ckpt-{number}", BACKUP)
    assert names(new_catalog(quiet_seconds=0).scan()) == ["ckpt-1", "ckpt-2"]


def test_the_place_of_an_iterator_is_left_out(root, new_catalog):
    """It holds no value of a model; a checkpoint that holds both is one."""
    put_object(root, "ckpt-1", (*MODEL, *ITERATOR[:1]))
    put_object(root, "input-1", ITERATOR)
    scan = new_catalog(quiet_seconds=0).scan()
    assert names(scan) == ["ckpt-1"]
    assert [name for name, why in scan.left_out if "iterator" in why] == ["input-1"]


def test_what_tensorboard_shows_is_left_out(keras, root, new_catalog):
    """It saves all weights for its page about embeddings, under a name of its own."""
    keras("m-1.weights.h5")
    keras("train/keras_embedding.ckpt-0.weights.h5")
    put_object(root / "train", "keras_embedding.ckpt-0", MODEL)
    scan = new_catalog(quiet_seconds=0, checkpoint_glob=EVERYWHERE).scan()
    assert names(scan) == ["m-1.weights.h5"]
    assert len([name for name, why in scan.left_out if "TensorBoard" in why]) == 2


def test_a_wildcard_does_not_mean_the_files_of_loggers(root, new_catalog):
    """A pattern with their name does."""
    for name in ("model", "events.out.tfevents.1.vm", "explore.ipynb"):
        (root / name).write_text("x")
    for name in ("epoch-1", "wandb", ".ipynb_checkpoints"):
        (root / name).mkdir()
        (root / name / "file").write_text("x")
    assert names(new_catalog(quiet_seconds=0, checkpoint_pattern="*").scan()) == ["epoch-1", "model"]
    assert names(new_catalog(quiet_seconds=0, checkpoint_pattern="wandb").scan()) == ["wandb"]
