"""Implement `sidecar status`: `collect` reads a run from shared storage, `render` shows it, `command` prints it."""
