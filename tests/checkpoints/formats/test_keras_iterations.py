"""Read how many steps the optimizer in a file of Keras has made."""

import os
import shutil

from sidecar.checkpoints.inspect import inspect_one


def checkpoints(folder):
    """Each checkpoint in a folder, by its name."""
    names = {entry.name.removesuffix(".index") for entry in folder.iterdir() if ".data-" not in entry.name}
    return {name: inspect_one(folder / name) for name in sorted(names) if "_0000" not in name and name != "checkpoint"}


def test_optimizers_tell_the_step(optimizers):
    """Read the step of every kind of file, also where one optimizer wraps another or is never used."""
    found = {name: (each.step, each.step_source) for name, each in checkpoints(optimizers).items()}
    expected = dict.fromkeys(found, (8, "optimizer"))
    expected["gan"] = expected["gan.weights.h5"] = (7, "optimizer")
    expected["many.weights.h5"] = (None, "order")  # a layout that is not read: no error
    assert found == expected
    assert len(found) > 30
    assert {each.format for each in checkpoints(optimizers).values()} == {
        "tf_object",
        "keras",
        "hdf5",
        "keras_shards",
        "saved_model",
    }


def test_the_name_where_the_file_holds_no_count(optimizers, root, new_catalog, clock):
    """Compared with the others that lie there; a file whose optimizer never stepped is believed last."""
    for name in ("m-12-75", "m-13-71", "best"):
        shutil.copy(optimizers / "many.weights.h5", root / f"{name}.weights.h5")
    for place, entry in enumerate(sorted(root.iterdir())):
        with entry.open("r+b") as file:  # another content each, of a value that nobody reads
            file.seek(-1 - place, os.SEEK_END)
            file.write(b"\x01")
    catalog = new_catalog()
    catalog.scan()
    clock.seconds += 3
    found = {each.checkpoint.name: each.checkpoint for each in catalog.scan().found}
    assert {name: (each.step, each.step_source) for name, each in found.items()} == {
        "m-12-75.weights.h5": (12, "name"),
        "m-13-71.weights.h5": (13, "name"),
        "best.weights.h5": (None, "order"),
    }
