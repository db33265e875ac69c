"""Entry of a worker process: `PYTHON -P …/sidecar/evaluation/__main__.py`, run as a file by the daemon.

The interpreter is the user's, where this package may not be installed: so it makes `sidecar`, and nothing else of the
daemon's environment, importable from the folder that it lies in. Standard library only.
"""

import importlib.util
import sys
from pathlib import Path


def _make_sidecar_importable(package: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "sidecar", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sidecar"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _make_sidecar_importable(Path(__file__).resolve().parents[1])
    from sidecar.evaluation.main import main

    main(sys.argv[1:])
