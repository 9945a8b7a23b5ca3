"""Translate lines of text: `python inference.py --help`."""

from __future__ import annotations

import sys

from specdec_plugins.app.main import main

if __name__ == "__main__":
    sys.exit(main())
