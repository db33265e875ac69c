"""Run the commands by `python -m sidecar`, where the program `sidecar` is not in PATH."""

from sidecar.commands.cli import main

if __name__ == "__main__":
    main()
