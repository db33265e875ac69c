"""Run one node's daemon: the loop and its state, the worker processes, and the one thread that touches storage."""
