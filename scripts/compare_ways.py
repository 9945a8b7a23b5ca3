"""Decode a file with several systems and print and plot one table; see benchmarks/compare.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.compare import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
