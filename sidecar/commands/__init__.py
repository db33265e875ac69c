"""Implement the commands, one module or folder each. Only the command line imports them.

Their parts are built from the settings by `from_settings`, `worker_pool` and, for a daemon, `bootstrap`.
"""
