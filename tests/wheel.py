"""What an installed wheel must do, in an environment without the checkout and without fairseq.

python -I -m pytest --noconftest --import-mode=importlib tests/wheel.py
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from importlib import import_module
from pathlib import Path

import pytest

SENTENCES = ("Click the button to save the changes to your file.", "Two dogs run.")
TRANSLATE, SERVE = (
    Path(sysconfig.get_path("scripts"), f"specdec-{name}") for name in ("translate", "serve")
)


def sets() -> list[str]:
    """The instruction sets of the kernels here, best first."""
    from specdec_plugins.decoding.networks.cpu import ops

    return list(ops.instruction_sets())


def translated(instruction_set: str) -> list[str]:
    done = subprocess.run(
        [TRANSLATE], input="\n".join(SENTENCES) + "\n", capture_output=True, text=True, timeout=300,
        env={**os.environ, "SPECDEC_INSTRUCTION_SET": instruction_set},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_is_installed_with_its_kernels() -> None:
    import specdec_plugins

    assert Path(specdec_plugins.__file__).resolve().is_relative_to(Path(sys.prefix).resolve())
    with pytest.raises(ModuleNotFoundError):
        import_module("fairseq")
    assert sets()[-1] == "plain"


def test_the_bundled_pair_says_the_same_with_every_kernel() -> None:
    best = translated(sets()[0])
    assert "Schaltfläche" in best[0]
    assert translated("plain") == best


def test_it_serves(tmp_path: Path) -> None:
    from specdec_plugins.serving.client import Client

    log = tmp_path / "log"
    with log.open("wb") as file, subprocess.Popen([SERVE, "--port", "0"], stderr=file) as server:
        try:
            for _attempt in range(3000):
                if found := re.search(r"running on (http://\S+)", log.read_text("utf-8")):
                    break
                assert server.poll() is None, log.read_text("utf-8")
                time.sleep(0.1)
            else:
                pytest.fail(log.read_text("utf-8"))
            assert Client(found[1]).translate(SENTENCES) == translated(sets()[0])
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()
