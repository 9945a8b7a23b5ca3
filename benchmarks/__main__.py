"""Everything side by side in one run: python -m benchmarks --help."""

import sys

if __name__ == "__main__":
    # Not above: the engines' processes import this file, too, and need nothing of it.
    from benchmarks.run import main

    sys.exit(main())
