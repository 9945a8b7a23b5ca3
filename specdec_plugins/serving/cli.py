"""specdec-serve from its arguments to its exit status."""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.errors import Parser, UserError, refuse
from specdec_plugins.serving.flags import add_model_flags, build
from specdec_plugins.serving.model import ModelOptions, ServedModel, load_model, request_defaults
from specdec_plugins.serving.settings import LOG_FORMAT, ReplicaOptions, ServerSettings

log = logging.getLogger("specdec.serving")

KEY_VARIABLE = "SPECDEC_API_KEY"
HOST, PORT = "127.0.0.1", 8080


def make_parser() -> argparse.ArgumentParser:
    """Destinations are fields of `ModelOptions` and `ServerSettings`, or local to `main`."""
    parser = Parser(
        prog="specdec-serve",
        description="Serve translations by speculative decoding over HTTP.",
        epilog=f"An API key is read from the environment variable {KEY_VARIABLE}, or from "
        "--api-key-file; without one everyone who reaches the address may translate.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add_model_flags(parser)
    _add_defaults(parser)
    _add_limits(parser)
    _add_replicas(parser)
    group = parser.add_argument_group("server")
    add = group.add_argument
    add("--host", help=f"address to listen on (default: {HOST}, this machine only)")
    add("--port", type=int, help=f"default: {PORT}; 0 = any free one")
    add("--api-key-file", metavar="FILE", help="first line: the key that requests must carry")
    add("--threads", type=int, metavar="N", help="of torch on a CPU (default: torch's own)")
    add(
        "--part-times",
        action=argparse.BooleanOptionalAction,
        help="metrics of drafter and verifier time; on a GPU they cost a little (default: yes)",
    )
    add("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    add("--debug", action="store_true", help="show where an error was raised")
    return parser


def _add_defaults(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "defaults of requests", "beta and tau: the bundle's, else 1 and 0"
    ).add_argument
    add(
        "--beta",
        type=int,
        metavar="N",
        help="accept among the N best tokens (1 = exact)",
    )
    add("--tau", type=float, metavar="X", help="and at most X nats under the best")
    add("--temperature", type=float, metavar="X", help="of samples (default: 0.7)")
    add("--top-p", type=float, metavar="X", help="of samples (default: 0.95)")
    add("--max-new-tokens", type=int, metavar="N", help="of a sentence; also the bound (200)")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    add("--max-rows", type=int, metavar="N", help="sentences that decode at once (32)")
    add("--max-waiting", type=int, metavar="N", help="sentences in line, then 429 (1000)")
    add("--max-body", type=int, metavar="BYTES", help="of a request (1000000)")
    add("--max-characters", type=int, metavar="N", help="of all texts of a request (20000)")
    add("--max-texts", type=int, metavar="N", help="of a request (100)")
    add("--max-alternatives", type=int, metavar="N", help="of a text (5)")
    add("--request-timeout", type=float, metavar="SECONDS", help="for an answer (120)")
    add("--body-timeout", type=float, metavar="SECONDS", help="for a body to arrive (30)")
    add("--shutdown-timeout", type=float, metavar="SECONDS", help="for accepted work (60)")


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("several engines, through Ray Serve").add_argument
    add("--replicas", type=int, metavar="N", help="engines, each with a model of its own")
    add(
        "--replica-gpus",
        type=float,
        metavar="X",
        help="GPUs of each, 0.5 for half a one (default: 1 where GPUs are used)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; the exit status of a command line."""
    given = vars(make_parser().parse_args(argv))
    level = given.get("log_level", "info").upper()
    logging.basicConfig(level=level, format=LOG_FORMAT)
    host, port = given.get("host", HOST), given.get("port", PORT)
    try:
        settings = build(ServerSettings, {**given, "api_key": read_key(given)})
        if "threads" in given:
            if given["threads"] < 1:
                raise UserError(f"--threads must be 1 or more, not {given['threads']}.")
            torch.set_num_threads(given["threads"])
        if "replica_gpus" in given and "replicas" not in given:
            raise UserError("--replica-gpus is about --replicas; give both, or neither.")
        options = build(ModelOptions, given)
        for name, value in request_defaults(options).items():
            settings = replace(settings, **{name: given.get(name, value)})
        check_address(host, port)
        if "replicas" in given:
            from specdec_plugins.serving.replicas import serve_replicas

            return serve_replicas(options, settings, build(ReplicaOptions, given), host, port)
        model = load_model(options)
    except UserError as error:
        if given.get("debug"):
            raise
        return refuse("specdec-serve", error)
    return serve(model, settings, host, port)


def check_address(host: str, port: int) -> None:
    """Raises UserError where nobody could listen: before models are loaded, and in a sentence."""
    if not 0 <= port < 2**16:
        raise UserError(f"--port {port}: expected 0 to 65535; 0 takes a free one.")
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UserError(
            f"nobody can listen at --host {host} --port {port} ({error.strerror}); name an address "
            "of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them, and a free port."
        ) from error


def serve(model: ServedModel, settings: ServerSettings, host: str, port: int) -> int:
    """Listen until a signal; 0 where accepted work was finished.

    1 where the engine fails, which ends it, too: a process that is started anew can translate.
    """
    # Web packages take a second to import; a wrong path should be told at once.
    import uvicorn

    from specdec_plugins.serving.app import UVICORN, create_app

    _announce(model, host, port)

    def stop() -> None:
        server.should_exit = True

    app = create_app(model, settings, when_failed=stop)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        **UVICORN,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout),
    )
    server = uvicorn.Server(config)
    # uvicorn raises the signal that stopped it once more when all is finished, for whoever would
    # have had it: nobody, so that a stop on request is a success.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    server.run()
    return 0 if server.started and not app.state.service.worker.has_failed else 1


def _announce(model: ServedModel, host: str, port: int) -> None:
    drafter = f"drafter {model.drafter_name}, blocks of {model.block_size}"
    log.info(
        "serving %s, %s to %s, %s, %s; address http://%s:%d/",
        model.name,
        model.source_lang,
        model.target_lang,
        drafter if model.drafter_name else "no drafter",
        model.kernels or f"{model.dtype} on {model.verifier.device.type}",
        host,
        port,
    )


def read_key(given: dict[str, Any]) -> str | None:
    """The API key; None where there is none. Raises UserError where its file cannot be read."""
    path = given.get("api_key_file")
    if path is None:
        return os.environ.get(KEY_VARIABLE)
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the API key cannot be read ({error}).") from error
    return lines[0].strip() if lines else ""
