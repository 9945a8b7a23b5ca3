"""Decode a file with and without the drafter and explain every difference.

Takes the flags of inference.py; exits with status 1 where rounding does not explain a difference.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specdec_plugins.app.exactness import check_exactness  # noqa: E402
from specdec_plugins.app.files import open_sentences  # noqa: E402
from specdec_plugins.app.main import parse_options  # noqa: E402
from specdec_plugins.errors import run_command  # noqa: E402


def work() -> int:
    settings, files = parse_options()
    with open_sentences(files) as sentences:
        exactness = check_exactness(settings, list(sentences))
    print(exactness)
    return 0 if exactness.holds else 1


if __name__ == "__main__":
    sys.exit(run_command("check_exactness.py", work, "--debug" in sys.argv, "interrupted"))
