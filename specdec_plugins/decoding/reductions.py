"""What rules and drafters ask of rows of logits: by kernels where there are some, else by torch.

A vocabulary is wide and rows are few, so torch's general reductions cost as much as a layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.networks import native


def best(logits: Tensor) -> Tensor:
    """The argmax, the first of equal ones: [...] int64 of [..., V]."""
    if not _suits(logits):
        return logits.argmax(-1)
    out = torch.empty(logits.shape[:-1], dtype=torch.int64)
    native.kernels.best(*_rows(logits), out.data_ptr(), torch.get_num_threads())
    return out


def log_total(logits: Tensor) -> Tensor:
    """log(sum(exp)) over the vocabulary: [...] of [..., V], in the precision of the logits."""
    if not _suits(logits):
        return logits.logsumexp(-1)
    out = logits.new_empty(logits.shape[:-1])
    native.kernels.log_total(*_rows(logits), out.data_ptr(), torch.get_num_threads())
    return out


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
    native.kernels.rank(*_rows(logits), tokens.data_ptr(), out.data_ptr(), threads)
    return out


def _suits(logits: Tensor) -> bool:
    is_plain = logits.dtype is torch.float32 and logits.device.type == "cpu"
    return native.kernels is not None and is_plain and logits.is_contiguous()


def _rows(logits: Tensor) -> tuple[int, int, int]:
    """Address, rows and width."""
    width = logits.shape[-1]
    return logits.data_ptr(), logits.numel() // width, width
