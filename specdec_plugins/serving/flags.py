"""Flags of the model and of limits, which specdec-serve and specdec-translate share."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, TypeVar

from specdec_plugins.app.options import json_object
from specdec_plugins.app.settings import DTYPES
from specdec_plugins.decoding.drafters import DRAFTERS
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.serving.model import NO_DRAFTER

R = TypeVar("R")


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Destinations are fields of `ModelOptions`; what is not given is left to its default."""
    add = parser.add_argument_group("models").add_argument
    add(
        "model",
        nargs="?",
        metavar="FOLDER",
        help="a bundle, or a folder with verifier.pt, drafter.pt, dict.<lang>.txt and bpe.codes "
        "(default: the bundled pair)",
    )
    add("--verifier", metavar="FILE", help="checkpoint (default: the one in FOLDER)")
    add(
        "--speculative-model",
        metavar="FILE",
        help="checkpoint of the drafter (default: the one in FOLDER, if any)",
    )
    add("--source-lang", "-s", metavar="LANG", help="default: from the names of files")
    add("--target-lang", "-t", metavar="LANG", help="default: from the names of files")
    add("--tokenizer", choices=("moses", "none"), help="default: the bundle's, else moses")
    add("--bpe-codes", metavar="FILE", help="default: those in FOLDER")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    add("--dtype", choices=sorted(DTYPES), help="default: float32; int8 on a CPU only")
    add("--drafter-dtype", choices=["int8"], help="default: the verifier's; int8 on a CPU only")
    _add_speculation(parser)


def _add_speculation(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("speculation").add_argument
    add(
        "--drafter",
        choices=[*DRAFTERS.names(), NO_DRAFTER],
        help="default: the bundle's, or block where FOLDER has a checkpoint, else none",
    )
    add("--drafter-options", type=json_object, metavar="JSON", help="settings of the drafter")
    add("--bigrams", metavar="FILE", help="of scripts/count-bigrams.sh (default: the folder's)")
    add(
        "--schedule",
        choices=SCHEDULES.names(),
        help="default: the bundle's, else constant",
    )
    add("--schedule-options", type=json_object, metavar="JSON", help="settings of the schedule")
    add(
        "--speculative-steps",
        "--block-size",
        type=int,
        metavar="N",
        help="tokens drafted a round (default: what the drafter was trained for)",
    )


def build(record: type[R], given: dict[str, Any]) -> R:
    """A record from the flags that carry the names of its fields."""
    names = {f.name for f in fields(record)}  # type: ignore[arg-type]  # every R is a dataclass
    return record(**{name: value for name, value in given.items() if name in names})
