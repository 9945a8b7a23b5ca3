"""Rounds of fixed shapes at fixed addresses, so that a GPU records each once, as a CUDA graph.

One sentence waits for the host to launch operations, not for the device; a recorded round is one
launch. The operations are those of `TorchLane`. Widths that the host knows are rounded up: rows to
a power of two, positions to a multiple of a step. Whatever outlives a round is in a `Pool`, where
operations write in place; rows that join or leave are copied there by operations that are not
recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import packed, unpacked
from specdec_plugins.decoding.constraints import has_own
from specdec_plugins.decoding.contract import Prefix, Verifier
from specdec_plugins.decoding.drafters.block import BlockNatDrafter
from specdec_plugins.decoding.lane import EngineConfig, Method, RowReport, TorchLane
from specdec_plugins.decoding.networks.cache import Pool
from specdec_plugins.decoding.networks.layers import LayerStack
from specdec_plugins.decoding.requests import COLUMNS, Request, RowParams
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.rules.mixed import GREEDY_TOP_K, MixedRule
from specdec_plugins.decoding.rules.top_beta import TopBeta
from specdec_plugins.decoding.sampling import HashRandom
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.decoding.stats import PartTimer
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import require

_TEXT, _SOURCE = 64, 32  # steps of positions
_recording = threading.Lock()
Told = tuple[Tensor, list[Tensor]]  # what the host is told of a round, and what that was made of


def check_static(verifier: Verifier, method: Method) -> None:
    """Raises UserError where rounds of these parts cannot have fixed shapes."""
    drafter = method.drafter
    suits = {
        "a verifier with relative positions, or with kernels for a CPU": (
            type(verifier) is TransformerVerifier
            and isinstance(verifier.network.decoder.layers, LayerStack)
            and verifier.network.config.decoder.positions != "relative"
        ),
        "drafters other than block": drafter is None or type(drafter) is BlockNatDrafter,
        "rules that sample": isinstance(method.rule, (Exact, TopBeta, MixedRule)),
        "schedules other than constant": isinstance(method.schedule, Constant),
    }
    odd = [what for what, is_so in suits.items() if not is_so]
    require(not odd, f"--cuda-graphs does not support {', '.join(odd)}; omit it.")


class StaticLane(TorchLane):
    """The lane of `check_static`'s parts.

    A batch with a row that asks for more than these can do, or for constraints of its own, decodes
    as in a `TorchLane`.
    """

    verifier: TransformerVerifier

    def __init__(
        self, verifier: Verifier, method: Method, config: EngineConfig, timer: PartTimer
    ) -> None:
        # A recorded round has no parts that could be timed.
        super().__init__(verifier, method, config, PartTimer(verifier.device, enabled=False))
        self._whole = timer
        self._pool = self.verifier.pool
        self._pool.most_rows = _power(config.max_rows)
        self._own = method.drafter if isinstance(method.drafter, BlockNatDrafter) else None
        self._key: Hashable = None  # of the batch's rounds, but for lengths; None = it is plain
        self._unread = 0  # bound of the committed tokens that a row of the drafter's cache lacks
        config.constraints.bans(verifier.device)  # a recorded round cannot upload them

    @torch.inference_mode()
    def admit(self, requests: Sequence[Request], now: float) -> None:
        with self._whole.part("encode"):
            if self.rows:  # without those that fill the batch
                super()._select(range(len(self.rows)))
            super().admit(requests, now)
            if self._drafter is not None:
                self._drafter.join(self.batch)
            self._unread = max(self._unread, *(len(request.forced_ids) for request in requests))
            self._fix()

    def _select(self, keep: Sequence[int]) -> None:
        super()._select(keep)
        self._unread = self._unread if keep else 0
        with torch.inference_mode():
            self._fix()

    @torch.inference_mode()
    def run(self, most: int) -> list[RowReport]:
        with self._whole.part("verify"):
            drafted, key = self._width(), self._key
            reports = super().run(most) if key is None else self._repeat(key, drafted)
            self._unread = drafted + 1 if drafted else self._unread + 1
            return reports

    def _repeat(self, key: Hashable, drafted: int) -> list[RowReport]:
        """A round by its record, which is made when one of its key comes a second time."""
        rounds, unread = self._pool.rounds, self._unread if drafted else 0
        width = self.batch.prefix.width = _stepped(max(row.length for row in self.rows), _TEXT)
        if self._own is not None:
            self._own.expect(width - 1, unread)
        forces = self._config.constraints.forces_last(width, drafted, self.batch.params.requested)
        key = (key, width, unread, forces)
        if key not in rounds:  # the first warms up what is made but once
            rounds[key], (told, parts) = None, self._packed()
        else:
            rounds[key] = rounds[key] or recorded(self._packed, self._pool, self.verifier.device)
            told, parts = rounds[key]()
        values = unpacked(told.cpu(), parts)
        return self._report([column[: len(self.rows)] for column in values])

    def _packed(self) -> Told:
        told = self._round()
        return packed(told), told

    def _width(self) -> int:
        return super()._width() if self._key is None else self._block()

    def _block(self) -> int:
        """The longest block of any row; 0 without a drafter."""
        if self._own is None:
            return 0
        longest = max(p.block_size for p in self.batch.params.requested)
        return min(longest, self._own.network.config.longest_block)

    def _plan_budget(self) -> None:
        held = self.batch.budget
        super()._plan_budget()
        self.batch.budget = held.copy_(self.batch.budget)

    def _fix(self) -> None:
        """Move all state into the pool, if no row asks for more than rounds there can do."""
        asked, samples = self.batch.params.requested, self.method.rule.samples
        self._key = None
        if not asked or any(has_own(p) or (samples and p.top_k != GREEDY_TOP_K) for p in asked):
            return
        num_rows, block = _power(len(asked)), self._block()
        sources = _stepped(max(len(row.request.source_ids) for row in self.rows), _SOURCE)
        longest = _stepped(max(p.max_len for p in asked) + 1, _TEXT)
        texts = self._pool.most_tokens = max(longest, self._pool.most_tokens)
        self._unread = max(min(texts, self._unread), block + 1)
        targets = _stepped(texts + block + self._unread, _TEXT)
        self.verifier.fix(num_rows, sources, targets)
        if self._own is not None:
            self._own.fix(self._pool, num_rows, sources, targets)
        self._fix_batch(num_rows, texts)
        # What operations are chosen by, beside shapes: see `constrain`, `MixedRule`, `_log_probs`
        asks = [(p.min_len > 0, p.beta > 1, p.with_scores) for p in asked]
        self._key = (num_rows, sources, block, *map(any, zip(*asks, strict=True)))

    def _fix_batch(self, num_rows: int, num_tokens: int) -> None:
        batch, put = self.batch, self._pool.put
        old, shape = batch.prefix, (num_rows,)
        tokens = put("tokens", old.tokens[:, :num_tokens], (num_rows, num_tokens))
        lengths, active = put("lengths", old.lengths, shape, 1), put("active", old.active, shape)
        columns = {name: put(name, getattr(batch.params, name), shape, 1) for name in COLUMNS}
        params = RowParams(**columns, requested=batch.params.requested)
        self.batch = replace(
            batch,
            prefix=Prefix(tokens, lengths, active, old.width),
            params=params,
            budget=put("budget", batch.budget, shape),
            random=HashRandom(params.seed),
        )


def recorded(compute: Callable[[], Told], pool: Pool, device: torch.device) -> Callable[[], Told]:
    """`compute` as a CUDA graph, which gives the same tensors each time; on a CPU as it is.

    Graphs share the memory of what does not outlive a round, as none runs beside another.
    """
    if device.type != "cuda":
        return compute
    graph = torch.cuda.CUDAGraph()
    pool.scratch = pool.scratch or torch.cuda.graph_pool_handle()
    # Other threads may use the device meanwhile, but not the stream.
    with _recording, torch.cuda.device(device):
        # Made by a thread's first matrix product, which may not be while it records.
        torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
        with torch.cuda.graph(
            graph, pool.scratch, _stream(device), capture_error_mode="thread_local"
        ):
            told = compute()

    def repeat() -> Told:
        graph.replay()
        return told

    return repeat


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """To record on; torch's own is on one device, and each other has a workspace that stays."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _stepped(count: int, step: int) -> int:
    return -(-count // step) * step
