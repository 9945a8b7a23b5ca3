"""The bars: python -m benchmarks.bars --help."""

import sys

if __name__ == "__main__":
    # Not above, as in the file of this name above: each engine's process imports this one.
    from benchmarks.bars import COMMAND

    sys.exit(COMMAND.run())
