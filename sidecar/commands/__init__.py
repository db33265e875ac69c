"""The commands, one module or folder each; `bootstrap` builds their parts. Imported by the command line alone."""
