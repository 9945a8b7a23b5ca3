"""All engines side by side in one run: python -m benchmarks --help."""

import sys

if __name__ == "__main__":
    # Not above: the engines' processes also import this file, and need nothing from it.
    from benchmarks.run import COMMAND

    sys.exit(COMMAND.run())
