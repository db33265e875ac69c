"""Say in one sentence which package an import of the public API needs, in an environment that lacks it.

The environment of the commands and of the daemon lacks numpy and every framework, on purpose. Standard library only.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def requiring(*packages: str, by: str) -> Iterator[None]:
    """Raise `ImportError` with one sentence if an import of the block fails because one of these packages is missing.

    `by`: the module that a user imports, such as `sidecar.metrics`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        remedy = "install it there, or use the Python that trains"
        raise ImportError(f"{by} needs {error.name}, which {sys.executable} lacks: {remedy}") from None
