"""The speed bars: python -m benchmarks.bars --help."""

import sys

if __name__ == "__main__":
    # Not above, as in benchmarks/__main__.py: each engine's process imports this file.
    from benchmarks.bars import COMMAND

    sys.exit(COMMAND.run())
