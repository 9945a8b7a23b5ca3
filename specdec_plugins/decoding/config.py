"""Settings of decoding: frozen, checked when they are built."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specdec_plugins.decoding.interfaces import RowParams
from specdec_plugins.errors import UserError

SEEDS = 2**63  # seeds are below it, as all integers of a request are
INTEGERS = ("block_size", "max_len", "min_len", "beta", "top_k", "seed")
LEAST = 1e-6  # temperature, and top-p: far below these, float32 laws are no laws any more


def require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


@dataclass(frozen=True)
class DecodeParams:
    """What one request may ask for."""

    block_size: int = 25  # tokens drafted a round at most; 0 = plain autoregressive decoding
    max_len: int = 200  # tokens after the start token at most, forced prefix and eos included
    min_len: int = 0  # eos is banned before so many tokens; fairseq's own search has 1
    beta: int = 1  # accept among the verifier's beta best tokens; 1 = exactly its greedy output
    tau: float = 0.0  # nats below the best logit that an accepted token may be; boundary included
    temperature: float = 1.0  # LEAST or more; sampling rules only
    top_k: int = 0  # sample from the k best; 0 = all
    top_p: float = 1.0  # sample from the smallest set with this mass; 1 = all
    seed: int = 0  # of this row's random numbers

    def __post_init__(self) -> None:
        for name in INTEGERS:
            require(getattr(self, name) < SEEDS, f"{name} must be below 2^63.")
        require(self.block_size >= 0, f"block size must be 0 or more, not {self.block_size}.")
        require(self.max_len >= 1, f"max_len must be 1 or more, not {self.max_len}.")
        require(self.min_len >= 0, f"min_len must be 0 or more, not {self.min_len}.")
        require(self.beta >= 1, f"beta must be 1 or more, not {self.beta}.")
        require(self.tau >= 0, f"tau must be 0 or more, not {self.tau}.")
        require(
            self.temperature >= LEAST,
            f"temperature must be {LEAST:g} or more, not {self.temperature}; for the best token "
            "alone, ask for top_k 1.",
        )
        require(self.top_k >= 0, f"top_k must be 0 (all) or more, not {self.top_k}.")
        require(LEAST <= self.top_p <= 1, f"top_p must be {LEAST:g} to 1, not {self.top_p}.")

    @staticmethod
    def stack(params: Sequence[DecodeParams], device: torch.device) -> RowParams:
        """One row a request."""

        def column(name: str, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([getattr(p, name) for p in params], dtype=dtype, device=device)

        floats = ("tau", "temperature", "top_p")
        return RowParams(
            **{name: column(name, torch.int64) for name in INTEGERS},
            **{name: column(name, torch.float32) for name in floats},
        )


@dataclass(frozen=True)
class EngineConfig:
    """How a session runs its batch. Only `ban_pad` can change an output."""

    max_rows: int = 32  # rows that decode at once
    compact_at: float = 0.25  # share of finished rows from which they are dropped and refilled
    ban_pad: bool = False  # never emit padding, as fairseq's own search never does
    with_scores: bool = False  # sum the verifier's log-probabilities of what is emitted
    measure_time: bool = True  # seconds by part; on an accelerator this synchronises every part
    clock: Callable[[], float] = time.perf_counter  # seconds, for that; may count CPU time only

    def __post_init__(self) -> None:
        require(self.max_rows >= 1, f"max_rows must be 1 or more, not {self.max_rows}.")
        require(
            0 < self.compact_at <= 1,
            f"compact_at must be above 0 and at most 1, not {self.compact_at}.",
        )
