"""Translate lines of text: `python inference.py --help`."""

from __future__ import annotations

import sys

from specdec_plugins.errors import run_program


def _run() -> int:
    try:
        return run_program("specdec_plugins.app.main", "inference")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.exit(
            "inference.py: error: torch is not installed; run `make setup`, then .venv/bin/python"
        )


if __name__ == "__main__":
    sys.exit(_run())
