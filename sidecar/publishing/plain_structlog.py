"""Import structlog without the packages that it only looks for. Every module of the daemon takes structlog from here.

structlog renders tracebacks with rich where that is installed, and rich imports pygments: 4 MB of memory and a tenth of
the start, for tracebacks that this program writes plainly. It also looks for greenlet, and for colorama, which only
Windows needs. `sidecar.commands` imports rich where a command draws a table, as if nothing had happened.
"""

import sys
from typing import Final

_UNWANTED: Final = ("rich", "greenlet", "colorama")

_hidden: Final = [name for name in _UNWANTED if name not in sys.modules]
sys.modules.update(dict.fromkeys(_hidden))  # type: ignore[arg-type] # None says that there is no such module
try:
    import structlog
finally:
    for _name in _hidden:
        del sys.modules[_name]

__all__ = ["structlog"]
