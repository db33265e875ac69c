"""The commands, one module or folder each. Imported by the command line alone.

Their parts are built from the settings by `from_settings`, `worker_pool` and, for a daemon, `bootstrap`.
"""
