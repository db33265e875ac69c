"""Import a Python file that a user names by its path."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_file(path: Path, name: str) -> ModuleType:
    """Return the module of a file whose name ends with `.py`, imported anew under a name; errors are those of its code.

    Classes of the file can be copied and pickled, since the module is in `sys.modules`, unless the import fails.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "the name ends with .py"
    assert spec.loader is not None, "likewise"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
