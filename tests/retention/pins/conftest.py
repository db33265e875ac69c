"""The checkpoints and collaborators of the tests of checkpoints: pins hold the same ones."""

from checkpoints.conftest import clock, new_catalog, pins, put, real_writer, recorded, root

__all__ = ["clock", "new_catalog", "pins", "put", "real_writer", "recorded", "root"]
