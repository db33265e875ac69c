"""Start a worker process. The daemon runs this file as `PYTHON -P …/sidecar/evaluation/__main__.py`.

The interpreter belongs to the user, and this package may not be installed there. So this file makes `sidecar`
importable from its own folder, and nothing else of the daemon's environment. Standard library only.
"""

import contextlib
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
    with contextlib.suppress(ImportError, FileNotFoundError):  # of another package: `sidecar.system.name_clash`
        spec.loader.exec_module(module)


if __name__ == "__main__":
    _make_sidecar_importable(Path(__file__).resolve().parents[1])
    from sidecar.evaluation.main import main

    arguments = sys.argv[1:]
    del sys.argv[1:]  # a task may import a training script that reads its command line: it gets its defaults
    main(arguments)
