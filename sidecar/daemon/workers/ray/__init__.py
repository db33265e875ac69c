"""Run worker processes on the nodes of a Ray cluster: the daemon asks a helper process, which alone imports Ray."""
