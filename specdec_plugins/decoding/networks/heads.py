"""Small networks on top of a last state: Medusa's heads, the sequential head, and its shortlist."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_plugins.decoding.networks.cache import SourceMemory
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.layers import attend
from specdec_plugins.decoding.networks.trained import (
    NETWORKS,
    State,
    TrainedNetwork,
    TrainingSettings,
)
from specdec_plugins.errors import require

Choice = Callable[[int, Tensor, Tensor], Tensor]
_TABULATED = 1024  # tokens at once, so that no second, float32 table is held beside the final one


@dataclass(frozen=True)
class MedusaConfig:
    """Number and width of the heads."""

    num_heads: int  # the block size that they were trained for
    dim: int  # width of the states that they read


@NETWORKS.register("medusa_heads")
class MedusaHeads(TrainedNetwork):
    """One residual block a head (Medusa, Cai et al. 2024, section 2.1.1, equation of the heads).

    The verifier's projection W predicts the next token from the state h. Head k turns h into a
    state that predicts the token k positions later: W (h + SiLU(W_k h + b_k)). In the paper each
    head has its own projection, which begins as a copy of W; here all share W itself, so that heads
    are small beside the verifier's vocabulary, and no less certain where h suffices.
    """

    Config = MedusaConfig
    arch, noun = "medusa_heads", "a set of heads"

    @classmethod
    def configure(cls, state: State, settings: TrainingSettings) -> MedusaConfig:
        return cls.described({}, state)

    @classmethod
    def described(cls, architecture: dict[str, Any], state: Mapping[str, Tensor]) -> MedusaConfig:
        """The weights alone determine it; earlier bundles store nothing else."""
        require(
            "blocks.weight" in state,
            "not a checkpoint of Medusa heads: it has no weights named blocks.weight.",
        )
        rows, dim = state["blocks.weight"].shape
        return MedusaConfig(rows // dim, dim)

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.num_heads, self.dim = config.num_heads, config.dim
        # All W_k and b_k as one product.
        self.blocks = nn.Linear(config.dim, config.num_heads * config.dim)
        self._compiled: Any = None

    @property
    def at_once(self) -> Any:
        """The kernels' heads; None where they do not suit."""
        weight, bias = self.blocks.weight.detach(), self.blocks.bias.detach()
        if not ops.compiled(weight):
            return None
        if self._compiled is None:
            packed = ops.native.PackedWeights(weight, bias, int8=False, instruction_set="")
            self._compiled = ops.native.Heads(blocks=packed)
        return self._compiled

    def forward(self, hidden: Tensor, num_used: int) -> Tensor:
        """States [B, num_used, D] of the first heads, from last states [B, D]."""
        compiled = self.at_once
        if compiled is not None:
            states = hidden.new_empty(len(hidden), num_used, self.dim)
            compiled.read(last=hidden, out=states, threads=torch.get_num_threads())
            return states
        rows = num_used * self.dim
        inner = F.linear(hidden, self.blocks.weight[:rows], self.blocks.bias[:rows])
        residual: Tensor = hidden[:, None]
        return residual + F.silu(inner.view(-1, num_used, self.dim))


class Listed(NamedTuple):
    """Types that may be drafted in one row."""

    types: Tensor  # [N] int32, ascending
    packed: Any = None  # the projection onto them, in the layout of the kernels


class Shortlist(nn.Module):
    """Target types that a source sentence makes likely: those of its types, and common ones.

    A drafter chooses among these, so that it scores hundreds of types instead of a whole
    vocabulary. The verifier scores all types, so no text changes. Like Marian's and CTranslate2's.
    """

    def __init__(self, source_size: int, num_common: int, num_types: int) -> None:
        super().__init__()
        self.common: Tensor  # [C] int32, for any sentence
        self.types: Tensor  # [N] int32, of source type s from starts[s] to starts[s + 1]
        self.starts: Tensor  # [V source + 1] int32
        for name, size in (
            ("common", num_common),
            ("types", num_types),
            ("starts", source_size + 1),
        ):
            self.register_buffer(name, torch.zeros(size, dtype=torch.int32))

    @cached_property
    def most(self) -> int:
        """Types of a source type, at most."""
        return int(self.starts.diff().max())

    def allowed(self, sources: Tensor, lengths: Tensor, vocab_size: int) -> Tensor:
        """Those of each sentence [B, S], of which `lengths` [B] count, as masks [B, V] bool.

        No shape depends on data, so that no host waits for a device.
        """
        places = torch.arange(self.most, device=sources.device)
        columns = torch.arange(sources.shape[1], device=sources.device)
        first = self.starts[sources].long()  # [B, S]
        counts = torch.where(columns < lengths[:, None], self.starts[sources + 1] - first, 0)
        index = (first[..., None] + places).clamp(max=max(0, len(self.types) - 1))  # [B, S, most]
        types = torch.where(places < counts[..., None], self.types[index], self.common[0])
        listed = torch.zeros(len(sources), vocab_size, dtype=torch.bool, device=sources.device)
        listed.scatter_(1, types.flatten(1).long(), True)
        return listed.index_fill_(1, self.common.long(), True)


class SequentialHead(nn.Module):
    """Corrects the state of each position of a block with the token drafted before it.

        [u_k ; q_k] = S h_k + T norm(e(t_{k-1}))
        z_k = h_k + O relu(u_k + C attend(q_k, source))

    with h_k the last state and e the token embedding, not scaled; without attention heads there is
    neither q nor C. In decoding T norm(e(t)) is a table over the vocabulary, computed once:
    [V, H + D], H the hidden width, or [V, H] without attention.

    One pass computes all positions of a block, so none knows the tokens chosen at the others; what
    comes next in the source depends on them, too. The idea is from Hydra (Ankner et al. 2024) and
    ReDrafter (Zhang et al. 2024), for one parallel block instead of several heads.
    """

    def __init__(self, dim: int, hidden_dim: int, num_heads: int = 0, source_dim: int = 0) -> None:
        super().__init__()
        self.hidden_dim, self.num_heads = hidden_dim, num_heads
        width = hidden_dim + (dim if num_heads else 0)
        self.norm = nn.LayerNorm(dim)
        self.state = nn.Linear(dim, width)
        self.token = nn.Linear(dim, width, bias=False)
        self.out = nn.Linear(hidden_dim, dim)
        if num_heads:
            self.key_value = nn.Linear(source_dim, 2 * dim)
            self.context = nn.Linear(dim, hidden_dim, bias=False)
        self._table: Tensor | None = None

    def forward(self, states: Tensor, before: Tensor, source: SourceMemory | None) -> Tensor:
        """Corrected states, in training, of states and of embeddings of the tokens before: all
        [B, n, D].
        """
        told = self.state(states) + self.token(self.norm(before))
        return states + self._correction(told, source)

    def keys_values(self, states: Tensor) -> tuple[Tensor, ...]:
        """Keys and values of a source's states [B, S, D], computed once: [B, S, 2, heads, d], or
        nothing. In a `SourceMemory` they follow those of the layers.
        """
        if not self.num_heads:
            return ()
        projected: Tensor = self.key_value(states)
        return (projected.view(*states.shape[:2], 2, self.num_heads, -1),)

    def table(self, embeddings: ops.Table) -> Tensor:
        """The table of token embeddings [V, D]; bfloat16 for float32, as it is the widest part."""
        table, dtype = self._table, embeddings.dtype
        dtype = torch.bfloat16 if dtype is torch.float32 else dtype
        if table is None or (table.device, table.dtype) != (embeddings.device, dtype):
            shape = len(embeddings), self.state.out_features
            table = torch.empty(shape, dtype=dtype, device=embeddings.device)
            for i in range(0, len(embeddings), _TABULATED):
                rows = slice(i, i + _TABULATED)
                table[rows] = self.token(self.norm(embeddings[rows]))
            self._table = table
        return table

    def prepare(self, embeddings: ops.Table, lists: bool) -> None:
        """Make what is kept for these embeddings [V, D]; `lists`: shortlists are drafted from."""
        self.table(embeddings)

    def draft(
        self,
        states: Tensor,  # [B, K, D]
        logits: Tensor,  # [B, K, V], before the head; -inf for types that may not be drafted
        before: Tensor,  # [B] int64, the last committed tokens
        embeddings: ops.Table,  # [V, D], also the output projection
        num_candidates: int | None,  # None = every type that may be drafted
        source: SourceMemory | None = None,  # which a head with attention reads
        choose: Choice | None = None,
        sure: bool = True,  # whether to say how probable the best candidates are
    ) -> tuple[Tensor, Tensor | None]:  # [B, K] int64, [B, K]
        """The tokens of each block from left to right, each the best after the one before it.

        At each position the tokens with the best logits are candidates. `choose` gets a position,
        the candidates [B, C] and their scores [B, C], and returns the index [B] of one of them, all
        int64 but the scores; None = the best, the first of equal ones. Also returns the probability
        of the best candidate of each position among the candidates, given the tokens before it.
        """
        if num_candidates is None:
            allowed, rows = logits, embeddings[:].expand(*logits.shape, -1)  # one table, repeated
            candidates = torch.arange(len(embeddings), device=logits.device).expand(logits.shape)
        else:
            allowed, candidates = logits.topk(min(num_candidates, logits.shape[-1]))
            rows = embeddings[candidates]  # [B, K, C, D]
        table, told = self.table(embeddings), self.state(states)  # told: [B, K, H + D]
        bans = torch.zeros_like(allowed).masked_fill_(allowed == -math.inf, -math.inf)
        drafted, confidences = [], []
        for place in range(states.shape[1]):
            heard = told[:, place] + table[before]
            corrected = states[:, place, None] + self._correction(heard[:, None], source)
            scores = torch.baddbmm(bans[:, place, None], corrected, rows[:, place].mT)[:, 0]
            own = candidates[:, place]
            index = scores.argmax(-1) if choose is None else choose(place, own, scores)
            before = own.gather(1, index[:, None])[:, 0]
            drafted.append(before)
            if sure:
                confidences.append(scores.softmax(-1).amax(-1))
        return torch.stack(drafted, 1), torch.stack(confidences, 1) if sure else None

    def _correction(self, told: Tensor, source: SourceMemory | None) -> Tensor:
        """What is added to states, [B, n, D], of `S h + T norm(e(t))`, [B, n, H + D]."""
        hidden, query = told[..., : self.hidden_dim], told[..., self.hidden_dim :]
        if self.num_heads:
            assert source is not None, "a head with attention reads the source"
            hidden = hidden + self.context(self._read(query, source)).to(hidden.dtype)
        added: Tensor = self.out(F.relu(hidden))
        return added

    def _read(self, queries: Tensor, source: SourceMemory) -> Tensor:
        """Attention to the source: [B, n, D] of queries [B, n, D]."""
        keys_values = source.keys_values[-1]
        asked = queries.to(keys_values.dtype).view(*queries.shape[:2], self.num_heads, -1)
        return attend(asked, keys_values, source.mask).to(queries.dtype)
