"""Implement `sidecar check`: `command` tries on this node what a daemon needs, and `peers` checks the other nodes."""
