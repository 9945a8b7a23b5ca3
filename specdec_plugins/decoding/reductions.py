"""What rules and drafters ask of rows of logits: by kernels where there are some, else by torch.

A vocabulary is wide and rows are few, so torch's general reductions cost as much as a layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.networks.cpu import ops


def best(logits: Tensor) -> Tensor:
    """The argmax, the first of equal ones: [...] int64 of [..., V]."""
    if not _suits(logits):
        return logits.argmax(-1)
    out = torch.empty(logits.shape[:-1], dtype=torch.int64)
    ops.kernels.best(*_rows(logits), out.data_ptr(), torch.get_num_threads())
    return out


def log_total(logits: Tensor) -> Tensor:
    """log(sum(exp)) over the vocabulary: [...] of [..., V], in the precision of the logits."""
    if not _suits(logits):
        return logits.logsumexp(-1)
    out = logits.new_empty(logits.shape[:-1])
    ops.kernels.log_total(*_rows(logits), out.data_ptr(), torch.get_num_threads())
    return out


def leading_best(logits: Tensor, drafted: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """How many drafted tokens are argmaxes one after another, and the argmax behind these.

    logits: [B, K+1, V], drafted: [B, K] int64, of which `lengths` [B] int64 count. Returns both
    [B] int64.
    """
    if not _suits(logits):
        own = best(logits)  # [B, K+1]
        columns = torch.arange(drafted.shape[1], device=drafted.device)
        kept = (drafted == own[:, :-1]) & (columns < lengths[:, None])
        num_kept = kept.long().cumprod(1).sum(1)
        return num_kept, own.gather(1, num_kept[:, None])[:, 0]
    num_rows, num_drafted = drafted.shape
    drafted, lengths = drafted.contiguous(), lengths.contiguous()
    num_kept, after = torch.empty_like(lengths), torch.empty_like(lengths)
    ops.kernels.accept_best(
        *(logits.data_ptr(), num_rows, num_drafted, logits.shape[-1]),
        *(drafted.data_ptr(), lengths.data_ptr(), num_kept.data_ptr(), after.data_ptr()),
        torch.get_num_threads(),
    )
    return num_kept, after


def leading_log_prob(logits: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Sum of the log-probabilities of each row's first tokens: [B] float64.

    logits: [B, N, V], tokens: [B, N] int64, of which `lengths` [B] int64 count. Normalised in
    float32 at least; in float64 it would cost as much as the verifier's projection.
    """
    if not _suits(logits):
        logits = logits.float() if logits.itemsize < 4 else logits
        total = log_total(logits).double()  # [B, N]
        counts = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        known = tokens.masked_fill(~counts, 0)  # junk may be no token id
        log_probs = logits.gather(-1, known[..., None])[..., 0].double() - total
        return log_probs.masked_fill(~counts, 0.0).sum(1)
    tokens, lengths = tokens.contiguous(), lengths.contiguous()
    sums = torch.empty(len(tokens), dtype=torch.float64)
    ops.kernels.emitted_log_probs(
        *(logits.data_ptr(), *logits.shape, tokens.data_ptr(), lengths.data_ptr()),
        *(sums.data_ptr(), torch.get_num_threads()),
    )
    return sums


def rank(logits: Tensor, tokens: Tensor) -> Tensor:
    """How many ids stand before each token when ids are sorted by falling logit.

    logits: [..., V]; tokens: [...] int64. Returns [...] int64, 0 for the argmax. Equal logits
    stand in the order of their ids, as argmax breaks ties, so rank 0 is exactly the argmax.
    """
    if not _suits(logits):
        own = logits.gather(-1, tokens[..., None])
        ids = torch.arange(logits.shape[-1], device=logits.device)
        before = (logits > own) | ((logits == own) & (ids < tokens[..., None]))
        return before.sum(-1)
    tokens = tokens.contiguous()
    out = torch.empty_like(tokens)
    threads = torch.get_num_threads()
    ops.kernels.rank(*_rows(logits), tokens.data_ptr(), out.data_ptr(), threads)
    return out


def _suits(logits: Tensor) -> bool:
    is_plain = logits.dtype is torch.float32 and logits.device.type == "cpu"
    return ops.kernels is not None and is_plain and logits.is_contiguous()


def _rows(logits: Tensor) -> tuple[int, int, int]:
    """Address, rows and width."""
    width = logits.shape[-1]
    return logits.data_ptr(), logits.numel() // width, width
