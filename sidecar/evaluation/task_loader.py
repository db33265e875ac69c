"""Import the module of a task in a worker process, and compute the digest of its code."""

import hashlib
import importlib
import sys
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from sidecar.errors import TaskError
from sidecar.evaluation.seeded_draws import SeededDraws
from sidecar.evaluation.task import Task, call
from sidecar.system.file_import import import_file
from sidecar.system.plain_text import shortened


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task and the digest of the code that made it."""

    task: Task
    digest: str
    modules: tuple[str, ...] = ()
    """Names of the modules next to the task's file or below it, and of the task's own."""
    notes: tuple[str, ...] = ()
    """What a reader of the result should know about the import."""


def load(reference: str, search_path: str) -> LoadedTask:
    """Import `module:attr` or `path/file.py:attr` and call it if it is a function.

    Raises `TaskError` if the task does not exist or is not a `Task`. Errors of the user's code are not caught.
    """
    with SeededDraws() as draws:
        loaded = _load(reference, search_path)
    return replace(loaded, notes=draws.notes)


def _load(reference: str, search_path: str) -> LoadedTask:
    location, separator, attribute = reference.rpartition(":")
    if not separator or not location or not attribute:
        raise TaskError(f"task {reference!r}: write module:attr or path/file.py:attr")
    if location.endswith(".py"):
        module = _import_file(Path(search_path, Path(location).expanduser()), reference)
    else:
        module = _import_module(location, search_path, reference)
    try:
        value = getattr(module, attribute)
    except AttributeError:
        names = sorted(name for name in vars(module) if not name.startswith("_"))
        raise TaskError(
            f"task {reference!r}: {location} has no {attribute!r}; it defines {', '.join(names) or 'nothing'}"
        ) from None
    task = value if isinstance(value, Task) else call(f"task {reference!r}", value) if callable(value) else value
    if not isinstance(task, Task):
        raise TaskError(
            f"task {reference!r}: expected a sidecar.Task or a function that returns one, "
            f"found {type(task).__name__} {shortened(task)}"
        )
    return LoadedTask(task, _digest(module, attribute), (module.__name__, *_own_modules(module)))


def _import_file(path: Path, reference: str) -> ModuleType:
    if not path.is_file():
        raise TaskError(f"task {reference!r}: there is no file {path}")
    _search_first(str(path.parent))  # as for a script, modules next to it can be imported
    # Modules next to it can import it by its own name; but a task file keras.py must not replace Keras.
    name = f"sidecar_task_{path.stem}" if path.stem in sys.modules else path.stem
    return import_file(path, name)


def _search_first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _import_module(name: str, search_path: str, reference: str) -> ModuleType:
    _search_first(search_path)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # the task's own import failed: the traceback of the user's code says more
        raise TaskError(
            f"task {reference!r}: there is no module {error.name!r} in {search_path} or installed for {sys.executable}"
        ) from None


def _digest(module: ModuleType, attribute: str) -> str:
    """Return the digest of the task's file and of every imported module next to or below it that is not installed."""
    digest = hashlib.sha256(attribute.encode())
    file = getattr(module, "__file__", None)
    if file is None:
        return digest.hexdigest()
    root = Path(file).resolve().parent
    for path in sorted(_modules_below(root) | {Path(file).resolve()}):
        digest.update(f"\0{path.relative_to(root)}\0".encode(errors="surrogateescape"))
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _own_modules(module: ModuleType) -> list[str]:
    """Return the names of the loaded modules in the folder of a module, and below it, that are not installed."""
    file = getattr(module, "__file__", None)
    below = _modules_below(Path(file).resolve().parent) if file is not None else set()
    loaded = [(name, getattr(other, "__file__", None)) for name, other in list(sys.modules.items())]
    paths = [(name, Path(path)) for name, path in loaded if isinstance(path, str) and path.endswith(".py")]
    stems = {path.name for path in below}
    return [name for name, path in paths if path.name in stems and path.resolve() in below and name != module.__name__]


def _modules_below(root: Path) -> set[Path]:
    """Return the files of loaded modules below the root that are not installed.

    A framework has thousands of modules, so only those in folders below the root, and links, are resolved.
    """
    standard = Path(sysconfig.get_path("stdlib")).resolve()  # below the root when a container's task lies at /

    def is_own(path: Path) -> bool:
        return path.is_relative_to(root) and "site-packages" not in path.parts and not path.is_relative_to(standard)

    loaded = (getattr(other, "__file__", None) for other in list(sys.modules.values()))
    # Objects that stand for modules, as torch makes them, have names that are no paths.
    paths = [Path(name) for name in loaded if isinstance(name, str) and name.startswith("/") and name.endswith(".py")]
    in_own_folder = {folder: is_own(folder.resolve()) for folder in {path.parent for path in paths}}
    candidates = {path.resolve() for path in paths if in_own_folder[path.parent] or path.is_symlink()}
    return {path for path in candidates if is_own(path)}
