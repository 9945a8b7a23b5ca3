"""Train with fairseq and this plugin: the flags are those of fairseq-train.

On one machine without GPUs, two processes train together under torch's launcher:
``torchrun --nproc-per-node 2 train.py ... --cpu``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from specdec_plugins.errors import UserError

PLUGIN = Path(__file__).resolve().parent / "specdec_plugins"


def command_line(given: Sequence[str], environment: dict[str, str]) -> list[str]:
    """The arguments for fairseq: the plugin loaded, and a launcher's processes on CPUs joined.

    fairseq derives a process's device from the number of GPUs, which fails on a machine without
    any; there everything that it would derive is given.
    """
    arguments = list(given)
    if not _has(arguments, "--user-dir"):
        arguments += ["--user-dir", str(PLUGIN)]
    launched = int(environment.get("WORLD_SIZE", "1")) > 1 and "RANK" in environment
    if launched and "--cpu" in arguments and not _has(arguments, "--distributed-init-method"):
        arguments += ["--distributed-init-method", "env://", "--distributed-no-spawn"]
        arguments += ["--distributed-world-size", environment["WORLD_SIZE"]]
        arguments += ["--distributed-rank", environment["RANK"]]
        arguments += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    return arguments


def _has(arguments: Sequence[str], flag: str) -> bool:
    return any(a == flag or a.startswith(flag + "=") for a in arguments)


def main() -> int:
    sys.argv[1:] = command_line(sys.argv[1:], dict(os.environ))
    from fairseq_cli.train import cli_main

    import specdec_plugins

    specdec_plugins.register()
    try:
        cli_main()
    except UserError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
