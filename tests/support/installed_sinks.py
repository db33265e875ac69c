"""Distributions with entry points of sinks, made in a folder for a test: no package index, and no build."""

import sys


def install(folder, points, source, monkeypatch, *, distribution="acme-sinks"):
    """Put a module `acme_sinks` and the metadata of a distribution that names it into a folder on the path."""
    metadata = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[sidecar.sinks]", *lines, ""]))
    (folder / "acme_sinks.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "acme_sinks", raising=False)
