"""Translate lines of text: `python inference.py --help`."""

from __future__ import annotations

import sys


def _run() -> int:
    try:
        # Imported here, because importing torch takes long enough to be interrupted.
        from specdec_plugins.app.main import main
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.exit(
            "inference.py: error: torch is not installed; run `make setup`, then .venv/bin/python"
        )
    return main()


if __name__ == "__main__":
    sys.exit(_run())
