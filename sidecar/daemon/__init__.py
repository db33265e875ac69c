"""One node's daemon: the loop, what it knows, its worker processes, and the one thread that touches storage."""
