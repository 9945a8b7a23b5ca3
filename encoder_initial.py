"""Write the drafter's initial checkpoint: `python encoder_initial.py --help`."""

from __future__ import annotations

import sys

from specdec_plugins.training.initial import COMMAND

if __name__ == "__main__":
    sys.exit(COMMAND.run())
