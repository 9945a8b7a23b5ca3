"""The command line `specdec serve`."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_plugins.app.report import kernels_in_use
from specdec_plugins.app.settings import EXACT, Settings, use_cores
from specdec_plugins.corpus.cli import CommandLine, build, flags_of, removed_from
from specdec_plugins.errors import UserError, imported, read_text, run_command
from specdec_plugins.serving.client import KEY_VARIABLE
from specdec_plugins.serving.model import ServedModel, load_model, served_settings
from specdec_plugins.serving.settings import LOG_LINE, MODEL, ProcessOptions, ServerSettings

log = logging.getLogger("specdec.serving")

COMMAND = CommandLine(
    "specdec serve",
    None,
    [*flags_of(Settings, only=MODEL), *flags_of(ServerSettings, ProcessOptions)],
    "Serve translations by speculative decoding over HTTP.",
    epilog=f"An API key is read from the environment variable {KEY_VARIABLE}, or from "
    "--api-key-file; without a key, anyone who can reach the address may translate.",
    removed=removed_from(Settings),
    usage="specdec serve [FOLDER] [flags]",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit status."""
    given = COMMAND.given(argv)
    logging.basicConfig(level=given.get("log_level", "info").upper(), format=LOG_LINE)
    told = "interrupted before the server started."
    return run_command(COMMAND.name, lambda: _run(given), "debug" in given, told)


def _run(given: Mapping[str, Any]) -> int:
    process, model = build(ProcessOptions, given), served_settings(given)
    key, tolerance = read_key(process.api_key_file), {n: getattr(model, n) for n in EXACT}
    settings = build(ServerSettings, {**tolerance, **given, "api_key": key})
    # Web packages take a second to import: after what is quick to refuse, and before models.
    imported("specdec_plugins.serving.app", "serve")
    use_cores(process.threads)
    check_address(process.host, process.port)
    if process.replicas is not None:
        from specdec_plugins.serving.replicas import serve_replicas

        return serve_replicas(model, settings, process)
    loaded = load_model(model, settings.max_rows, process.part_times)
    return serve(loaded, settings, process.host, process.port)


def check_address(host: str, port: int) -> None:
    """Raises UserError if the server could not listen there. Called before models are loaded."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise UserError(
            f"cannot listen on --host {host} --port {port} ({error.strerror}); name an address "
            "of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them, and a free port."
        ) from error


def serve(model: ServedModel, settings: ServerSettings, host: str, port: int) -> int:
    """Listen until a signal; returns 0 if accepted work was finished.

    Returns 1 if the engine fails. That ends the server, too: a restarted process can translate.
    """
    from specdec_plugins.serving.app import Server, create_app

    _announce(model, host, port)

    def stop() -> None:
        server.should_exit = True

    app = create_app(model, settings, when_failed=stop)
    server = Server(app, settings, host=host, port=port)
    # When all is finished, uvicorn raises the signal that stopped it again, for the handlers that
    # were there before. These ignore it, so that a stop on request is a success.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    server.run()
    service = app.state.service
    if server.started and not service.has_ended:
        log.error("ending, although some work has not ended")
        logging.shutdown()
        os._exit(1)  # else the interpreter would wait for its threads
    has_failed = service.worker.has_died or service.has_lost_work
    return 0 if server.started and not has_failed else 1


def _announce(model: ServedModel, host: str, port: int) -> None:
    device, name = model.decoder.verifier.device, model.drafter_name
    drafter = f"drafter {name}, blocks of {model.limits.block_size}" if name else "no drafter"
    compute = kernels_in_use(model.settings) or f"{model.settings.dtype} on {device.type}"
    log.info(
        f"serving {model.name}, {_direction(model)}, {drafter}, {compute}; "
        f"address http://{host}:{port}/"
    )


def _direction(model: ServedModel) -> str:
    languages = model.codec.languages
    if len(languages.sources) > 1 or len(languages.targets) > 1:
        return f"from {len(languages.sources)} languages to {len(languages.targets)}"
    return f"{model.codec.source_lang} to {model.codec.target_lang}"


def read_key(path: str | None) -> str | None:
    """The API key of a file or the environment, if any. Raises UserError if unreadable."""
    if path is None:
        return os.environ.get(KEY_VARIABLE)
    text = read_text(path, "the API key", "check --api-key-file")
    return text.partition("\n")[0].strip()


if __name__ == "__main__":
    sys.exit(main())
