"""Train with fairseq and this plugin: the flags of fairseq-train."""

from __future__ import annotations

import sys

from specdec_plugins.training.fairseq_train import main, prepare

if __name__ == "__mp_main__":  # imported by a process that fairseq starts
    prepare()
if __name__ == "__main__":
    sys.exit(main())
