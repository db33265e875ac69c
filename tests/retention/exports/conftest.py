"""The daemons of the tests of the loop: exports follow what their journals say."""

from daemon.conftest import clock, new_node, node

__all__ = ["clock", "new_node", "node"]
