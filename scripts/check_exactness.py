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
from specdec_plugins.errors import UserError  # noqa: E402


def main() -> int:
    try:
        settings, files = parse_options()
        with open_sentences(files) as sentences:
            exactness = check_exactness(settings, list(sentences))
    except UserError as error:
        print(f"check_exactness.py: {error}", file=sys.stderr)
        return 2
    print(exactness)
    return 0 if exactness.holds else 1


if __name__ == "__main__":
    sys.exit(main())
