"""What the operator of a server sets: limits and defaults, checked when they are built."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_plugins.errors import require

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


@dataclass(frozen=True)
class ServerSettings:
    """Bounds of a server. Lengths of text count characters, lengths of time seconds."""

    max_rows: int = 32  # sentences that decode at once
    max_waiting: int = 1000  # sentences in line; more are answered with 429
    max_body: int = 1_000_000  # bytes of a request's body
    max_characters: int = 20_000  # of all texts of a request
    max_texts: int = 100  # in a list
    max_alternatives: int = 5
    max_new_tokens: int = 200  # target tokens of a sentence, its end included; default and bound
    request_timeout: float = 120.0  # from when a request is read until its answer is complete
    body_timeout: float = 30.0  # until all of a request's body has arrived
    shutdown_timeout: float = 60.0  # for accepted work to finish after a signal to stop

    beta: int = 1  # default of requests that do not say
    tau: float = 0.0
    temperature: float = 0.7  # of alternatives, and of samples that do not say
    top_p: float = 0.95
    api_key: str | None = None  # None = everyone may translate

    def __post_init__(self) -> None:
        counts = ("max_rows", "max_waiting", "max_body", "max_characters", "max_texts")
        for name in (*counts, "max_new_tokens", "beta"):
            flag, value = "--" + name.replace("_", "-"), getattr(self, name)
            require(value >= 1, f"{flag} must be 1 or more, not {value}.")
        require(self.max_alternatives >= 0, "--max-alternatives must be 0 or more.")
        for name in ("request_timeout", "body_timeout", "shutdown_timeout", "temperature"):
            flag, value = "--" + name.replace("_", "-"), getattr(self, name)
            require(value > 0, f"{flag} must be above 0, not {value}.")
        require(self.tau >= 0, f"--tau must be 0 or more, not {self.tau}.")
        require(0 < self.top_p <= 1, f"--top-p must be above 0 and at most 1, not {self.top_p}.")
        require(self.api_key != "", "The API key is empty; set one, or leave it away.")


@dataclass(frozen=True)
class ReplicaOptions:
    """How many engines there are, and what each of them gets."""

    replicas: int
    replica_gpus: float | None = None  # a share of one, or several; None = 1 where GPUs are used
    threads: int | None = None  # of torch on a CPU; None = the cores shared out
    log_level: str = "info"

    def __post_init__(self) -> None:
        require(self.replicas >= 1, f"--replicas must be 1 or more, not {self.replicas}.")
        given = self.replica_gpus
        require(given is None or given >= 0, f"--replica-gpus must be 0 or more, not {given}.")
