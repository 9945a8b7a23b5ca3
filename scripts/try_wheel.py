"""Checks an installed wheel. Run by the Python of an environment that holds only the wheel.

    environment/bin/python -I scripts/try_wheel.py

There must be no compiler and no fairseq, and the kernels must be in use. Then the installed
commands decode the bundled pair and serve requests. On a fault: a sentence and exit status 1.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang", "icpx", "nvcc")
SENTENCES = ("Click the button to save the changes to your file.", "Two dogs run.")
PATIENCE = 300  # seconds for a command, or for a server to start or to stop
_SCRIPTS = Path(sysconfig.get_path("scripts"))


def main() -> None:
    check_place()
    kernels = check_kernels()
    found = {name: decode(name) for name in {kernels[0], kernels[-1]}}
    first = found[kernels[0]]
    require(all(lines == first for lines in found.values()), f"the kernels disagree: {found}")
    told = " and with ".join(sorted(found))
    print(f"decoded the bundled pair with {told}: {' '.join(first)}", flush=True)
    require("Schaltfläche" in first[0], "the output is not the expected translation")
    check_server(first)


def require(condition: bool, fault: str) -> None:
    """End with this sentence unless the condition holds."""
    if not condition:
        sys.exit(f"try_wheel.py: {fault}.")


def check_place() -> None:
    """The wheel must get no help: no compiler and no fairseq."""
    compilers = [shutil.which(name) for name in (*COMPILERS, *_named_compilers())]
    there = next(filter(None, compilers), None)
    require(there is None, f"the compiler {there} is on the PATH")
    try:
        importlib.import_module("fairseq")
    except ModuleNotFoundError:
        print("no compiler, no fairseq", flush=True)
    else:
        require(False, "fairseq is importable")


def _named_compilers() -> list[str]:
    """The compilers that CC and CXX name; "false" stands for none."""
    named = (os.environ.get(variable, "") for variable in ("CC", "CXX"))
    return [words[0] for value in named if (words := value.split()) and words[0] != "false"]


def check_kernels() -> list[str]:
    """The usable instruction sets, best first; the package must be the environment's own."""
    import specdec_plugins
    from specdec_plugins.decoding.networks.cpu import ops

    place = Path(specdec_plugins.__file__).resolve()
    require(place.is_relative_to(Path(sys.prefix).resolve()), f"{place} is not from the wheel")
    sets = ops.instruction_sets()
    require(bool(sets), "the kernels are not in the wheel")
    print(f"kernels: {', '.join(sets)}", flush=True)
    return sets


def decode(instruction_set: str) -> list[str]:
    """Translate the sentences by `specdec-translate`, with that instruction set."""
    done = subprocess.run(
        [_SCRIPTS / "specdec-translate"],
        input="\n".join(SENTENCES) + "\n",
        env={**os.environ, "SPECDEC_INSTRUCTION_SET": instruction_set},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    require(done.returncode == 0, f"specdec-translate failed: {done.stderr.strip()}")
    return done.stdout.splitlines()


def check_server(expected: list[str]) -> None:
    """Send each sentence to `specdec-serve`, which must then stop on SIGTERM."""
    from specdec_plugins.serving.client import Client

    with serving() as (process, url):
        client = Client(url, timeout=PATIENCE)
        kernels = str(client.info()["kernels"])
        require(kernels.startswith("native"), f"the server decodes with {kernels}")
        said = [client.generate(line)["generated_text"] for line in SENTENCES]
        require(said == expected, f"the server gives other translations: {said}")
        process.send_signal(signal.SIGTERM)
        status = process.wait(PATIENCE)
        require(status == 0, f"the server stopped with status {status}")
    print(f"served {len(said)} requests with {kernels}; stopped cleanly", flush=True)


@contextmanager
def serving() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server on a free port of this machine alone, and its address; it ends with the block."""
    log = Path("specdec-serve.log")
    command = [str(_SCRIPTS / "specdec-serve"), "--port", "0"]
    with log.open("wb") as stream, subprocess.Popen(command, stderr=stream) as process:
        try:
            end = time.monotonic() + PATIENCE
            while not (found := re.search(r"running on (http://\S+)", log.read_text("utf-8"))):
                ended = process.poll() is not None or time.monotonic() > end
                require(not ended, f"specdec-serve did not start: {log.read_text('utf-8')}")
                time.sleep(0.1)
            yield process, found[1]
        finally:
            process.kill()


if __name__ == "__main__":
    main()
