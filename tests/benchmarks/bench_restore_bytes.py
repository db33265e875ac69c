"""How much of a checkpoint is read to restore a model."""

from programs import Child, scratch
from table import Figure, Table

HOW = """A model of 50 MB, saved with an Adam optimizer, whose two slots make the checkpoint three times as large.
Each row is a fresh process that has built its model and restores once; bytes are those it asked the kernel for
(`rchar` of /proc/self/io), whether or not they were in the page cache."""
COLUMNS = ("", "MB read", "of the model's bytes")
WAYS = {
    "ours": "the worker's restore",
    "model": "tf.train.Checkpoint(model=…).restore",
    "all": "tf.train.Checkpoint(model=…, optimizer=…).restore",
}


def measure(quick):
    del quick  # it is quick
    found = {}
    with scratch() as folder:
        path = str(folder / "ckpts" / "ckpt-1")
        with Child("restorer.py", folder=folder) as child:
            saved = child.ask(path=path, way="save")
        for way in WAYS:
            with Child("restorer.py", folder=folder) as child:
                found[way] = child.ask(path=path, way=way)["bytes"]
    rows = [(WAYS[way], read / 1e6, read / saved["model"]) for way, read in found.items()]
    figures = [Figure("bytes read by the worker's restore", found["ours"] / saved["model"], 1.1, unit=" × the model's")]
    notes = [f"The model has {saved['model'] / 1e6:.1f} MB, the checkpoint {saved['checkpoint'] / 1e6:.1f} MB."]
    return Table("Restore: bytes read", HOW, COLUMNS, rows, figures, notes)
