"""A program that loads a folder or a bundle and prints what that took, as JSON, in bytes."""

from __future__ import annotations

import ctypes
import gc
import json
import re
import sys
from pathlib import Path

import torch

from specdec_plugins.app.defaults import make_settings
from specdec_plugins.app.loading import load_parts
from specdec_plugins.decoding.networks import with_fast_products
from specdec_plugins.formats.bundle import is_bundle
from specdec_plugins.formats.pretrained.config import read_config
from specdec_plugins.formats.pretrained.weights import read_model


def memory(kind: str) -> int:
    """VmRSS, what is held now, VmHWM, the most that was, or VmSize, what is addressed."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


def network_of(folder: str, precision: str) -> torch.nn.Module:
    """The network of a folder that may lack its tokenizer."""
    config = read_config(folder)
    order = [*range(config.vocab_size)]
    order[4:6] = 5, 4  # as if the tokenizer had another order
    network, weights = read_model(config, order, order).opened(torch.float32, torch.device("cpu"))
    return with_fast_products(network, precision == "int8", weights=weights)


def main(folder: str, precision: str) -> None:
    before = memory("VmRSS")
    if is_bundle(folder):
        given = {"data": folder, "dtype": precision, "device": "cpu", "strategy": "specdec"}
        loaded: object = load_parts(make_settings(given))
    else:
        loaded = network_of(folder, precision)
    most = memory("VmHWM")
    gc.collect()
    ctypes.CDLL("").malloc_trim(0)
    sys.stdout.write(json.dumps({"stays": memory("VmRSS") - before, "peak": most - before}))
    del loaded


if __name__ == "__main__":
    main(*sys.argv[1:])
