"""Translate typed or piped lines with the bundled pair of models: `make translate`.

In a pipe there is one line out for each line in: `echo "Good morning." | scripts/translate.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specdec_plugins.errors import run_program  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_program("specdec_plugins.app.main", "translate"))
