"""The checkpoints and collaborators of the tests of checkpoints: pins hold the same ones."""

from checkpoints.conftest import clock, lying, new_catalog, pinned, pins, put, real_writer, recorded, root

__all__ = ["clock", "lying", "new_catalog", "pinned", "pins", "put", "real_writer", "recorded", "root"]
