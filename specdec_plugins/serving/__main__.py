"""`python -m specdec_plugins.serving` is specdec-serve."""

from __future__ import annotations

import sys

from specdec_plugins.serving.cli import main

if __name__ == "__main__":
    sys.exit(main())
