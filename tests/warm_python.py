"""An interpreter whose slow imports are done: for the commands of pages, one after another.

torch and fairseq take seconds of each process. ``warm_python()`` is the path of a program that is
called as Python is; a server that has imported both forks for each call, with the caller's files,
folder and environment. What is this project's own is imported by the fork.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from select import select

CALLER = """\
#!{python} -IS
import json, os, signal, socket, sys
PYTHON, words = {python!r}, sys.argv[1 + (sys.argv[1:2] == ["-u"]) :]
if not words or words[0] != "-m" and words[0].startswith("-"):
    os.execv(PYTHON, [PYTHON, *words])
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
socket.send_fds(link, [b"."], [0, 1, 2])
link.sendall(json.dumps([words, sys.argv[0], os.getcwd(), dict(os.environ)]).encode())
link.shutdown(socket.SHUT_WR)
answers = link.makefile()
fork = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(fork, number))
os._exit(int(answers.readline()))
"""


@cache
def warm_python() -> str:
    """It ends with this process."""
    folder = Path(tempfile.mkdtemp())
    program, address = folder / "python", folder / "address"
    program.write_text(CALLER.format(python=sys.executable, address=str(address)))
    program.chmod(0o700)
    server = subprocess.Popen(
        [sys.executable, __file__, str(address)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    _SERVERS.append(server)  # whose end of input is ours
    return str(program)


_SERVERS: list[subprocess.Popen[bytes]] = []


def _serve(address: str) -> list[str]:
    """Returns in a fork, as whom it was asked for: its words. Else at the end of input."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which background jobs ignore
    gc.freeze()  # else each fork's collector copies all of it
    os.write(1, b"ready\n")
    while listener in select([listener, 0], [], [])[0]:
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _keep(link)
        link.close()
    shutil.rmtree(Path(address).parent)
    raise SystemExit


def _keep(link: socket.socket) -> list[str]:
    """Fork once more, and tell the caller what came of it."""
    _, files, *_ = socket.recv_fds(link, 1, 3)
    asked = json.loads(link.makefile().read())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fork = os.fork()
    if fork:
        status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        with suppress(OSError):  # nobody waits for it
            link.sendall(f"{status if status >= 0 else 128 - status}\n".encode())
        os._exit(0)
    words, sys.executable, folder, environment = asked
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    link.sendall(f"{os.getpid()}\n".encode())
    link.close()
    return list(words)


def _run(first: str, words: list[str]) -> None:
    """A script, or the module behind -m."""
    is_module = first == "-m"
    if is_module:
        first, *words = words
    folder = os.getcwd() if is_module else str(Path(first).resolve().parent)
    sys.path[:0] = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [first, *words]
    run = runpy.run_module if is_module else runpy.run_path
    run(first, run_name="__main__", **({"alter_sys": True} if is_module else {}))


def main() -> None:
    sys.path.pop(0)  # this folder
    with suppress(ImportError):
        import fairseq  # noqa: F401  (and torch with it)
    logging.root.handlers.clear()  # fairseq says something meanwhile, for which one is made
    first, *words = _serve(sys.argv[1])
    status = 0
    try:
        _run(first, words)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if status and status is not ended.code:
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without taking down what was imported, which would copy all of it, too


if __name__ == "__main__":
    main()
