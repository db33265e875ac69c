"""Implement `sidecar check`: `command` runs all trials, the other modules have one subject each, `report` prints."""
