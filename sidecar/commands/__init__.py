"""What the commands do, put together from settings. Imported by the command line alone."""
