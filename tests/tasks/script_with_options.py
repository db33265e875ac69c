"""A training script that reads its command line when it is imported, with a task in it."""

import argparse

from digits import task

argparse.ArgumentParser().parse_args()

__all__ = ["task"]
