"""Folders in each other, more than a path can name."""

import os


def nest(folder, count):
    """Make so many folders in each other, below a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(count):
        os.mkdir("x", dir_fd=descriptor)
        below = os.open("x", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
