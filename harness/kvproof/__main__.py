"""The program `kvproof`, which Ctrl-C ends with a word also while it is still being read."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; status 3 if it is broken off."""
    try:
        from kvproof.cli import main as commands
    except KeyboardInterrupt:
        print("broken off from the keyboard", file=sys.stderr)
        sys.exit(3)
    commands(prog_name="kvproof")


if __name__ == "__main__":
    main()
