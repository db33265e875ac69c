"""Deliver each result of a run to other programs, once and in order, beside the daemon's loop."""
