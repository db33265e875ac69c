"""Checkpoints that real writers wrote, and one small model of Keras with its checkpoints, made once."""

from checkpoints.conftest import clock, put, recorded, root

__all__ = ["clock", "put", "recorded", "root"]
