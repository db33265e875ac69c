"""Manage the worker processes of this node: start them, send them commands, enforce time limits, and kill them."""
