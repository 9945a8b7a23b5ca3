"""The settings of a server's operator: models, limits, defaults and process, each declared once.

Flags, bounds and help derive from the declarations (`corpus/cli.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from specdec_plugins.app.settings import Settings
from specdec_plugins.corpus.cli import check, like, option
from specdec_plugins.errors import require

LOG_LINE = "%(asctime)s %(levelname)s %(message)s"
# The settings of the model that a server takes; others come with each request.
MODEL = (
    *("data", "verifier", "drafter_checkpoint", "source_lang", "target_lang"),
    *("tokenizer", "bpe_codes", "device", "dtype", "drafter_dtype", "cuda_graphs"),
    *("drafter", "drafter_options", "schedule", "schedule_options", "block_size"),
)

_default = partial(like, Settings, group="defaults of requests")
_limit = partial(option, group="limits")
_process = partial(option, group="server")
_replica = partial(option, group="several engines, through Ray Serve")


@dataclass(frozen=True)
class ServerSettings:
    """Limits of a server, and defaults of its requests."""

    # fmt: off
    beta: int = _default("beta", help="accept any of the verifier's N best tokens (default: the "
        "bundle's, else 1, exact)")
    tau: float = _default("tau", help="accept none more than X nats below its best (default: the "
        "bundle's, else 0)")
    temperature: float = _default("temperature", default=0.7, help="temperature of samples",
        advice="")
    top_p: float = _default("top_p", default=0.95, help="probability mass to sample from")
    max_new_tokens: int | None = option(None, "most target tokens of a sentence, its end included; "
        "requests may not ask for more (default: what the model has positions for)", least=1,
        group="defaults of requests")

    max_rows: int = _limit(32, "sentences decoded at once", flags=("--batch", "--max-rows"),
        least=1)
    max_waiting: int = _limit(1000, "sentences in the queue; more are answered with 429", least=1)
    max_body: int = _limit(1_000_000, "size of a request's body", "BYTES", least=1)
    max_file: int = _limit(10_000_000, "size of a file that is sent", "BYTES", least=1)
    max_characters: int = _limit(20_000, "characters in all texts of a request", least=1)
    max_texts: int = _limit(100, "texts in a request", least=1)
    max_alternatives: int = _limit(5, "alternatives of a text", least=0, most=15)
    request_timeout: float = _limit(120.0, "from when a request is read until its answer is "
        "complete", "SECONDS", above=0)
    max_connections: int = _limit(500, "open connections; more are closed at once", least=1)
    body_timeout: float = _limit(30.0, "until a connection sends a request's head, then its whole "
        "body, and until a reader who stopped reads on", "SECONDS", above=0)
    drain_timeout: float = _limit(5.0, "to go on serving after SIGTERM, while /health tells others "
        "to send no more", "SECONDS", least=0)
    shutdown_timeout: float = _limit(60.0, "to finish accepted work after a signal to stop",
        "SECONDS", above=0, most=86_400)
    allow_origins: str | None = option(None, "pages elsewhere that may use the server, such as "
        "https://example.com, separated by commas; * = any (default: none, but any page may send "
        "JSON)", "ORIGINS", group="limits")
    # fmt: on
    api_key: str | None = None  # None = everyone may translate

    @property
    def origins(self) -> list[str]:
        """As browsers send them."""
        named = [one.strip().lower() for one in (self.allow_origins or "").split(",")]
        return [one.removesuffix("/") for one in named if one]

    def __post_init__(self) -> None:
        check(self)
        require(self.api_key != "", "The API key is empty; set one, or omit it.")
        for one in self.origins:
            told = f"--allow-origins: {one} is no origin; give one such as https://example.com."
            require(re.fullmatch(r"\*|null|[\w+.-]+://[^/]+", one) is not None, told)


@dataclass(frozen=True)
class ProcessOptions:
    """Where the server listens, what it computes with, and how many engines it starts."""

    # fmt: off
    host: str = _process("127.0.0.1", "address to listen on", "HOST")
    port: int = _process(8080, "port to listen on; 0 = any free one", "PORT", least=0, most=65535)
    api_key_file: str | None = _process(None, "file whose first line is the key that requests must "
        "send", "FILE")
    threads: int | None = _process(None, "threads on a CPU (default: one on each core)",
        least=1, most=1024)
    part_times: bool | None = _process(None, "measure drafter and verifier time for the metrics "
        "(default: on a CPU, where it costs nothing); on a GPU every part then waits for the device"
        "")
    log_level: str = _process("info", "lowest level to log",
        choices=("debug", "info", "warning", "error"))
    debug: bool = _process(False, "show stack traces of errors")

    replicas: int | None = _replica(None, "engines, each with its own model", least=1)
    replica_gpus: float | None = _replica(None, "GPUs per engine, 0.5 for half of one (default: 1 "
        "if GPUs are used)", least=0)
    # fmt: on

    def __post_init__(self) -> None:
        check(self)
        require(
            self.replicas is not None or self.replica_gpus is None,
            "--replica-gpus needs --replicas; give both, or omit --replica-gpus.",
        )
        told = "--replicas needs a --port that is not 0: nobody is told which one Ray takes."
        require(self.replicas is None or self.port != 0, told)
