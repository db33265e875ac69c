"""Decide who evaluates what, and when. Pure: state and time in, a decision out; no I/O and no clock."""
