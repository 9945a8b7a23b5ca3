"""Write the drafter's initial checkpoint, with the encoder of a trained verifier.

The result is a complete drafter checkpoint, so a stock fairseq trainer restores it with
``--restore-file O.pt --reset-optimizer --reset-dataloader --reset-lr-scheduler --reset-meters``.
Train with the architecture flags that were given here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specdec_plugins.corpus import cli
from specdec_plugins.formats.output import check_output

# Sizes that default to the verifier's; those of copied layers must equal them.
SIZES = [
    f"{side}-{part}"
    for side in ("encoder", "decoder")
    for part in ("embed-dim", "ffn-embed-dim", "attention-heads", "layers")
]
POSITIONS = ("max-source-positions", "max-target-positions")

# What each switch means, and whether it is on unless it is negated.
SWITCHES = {
    "src-embedding-copy": "masked positions get a mixture of the source's embeddings (on)",
    "apply-bert-init": "initialise new weights as BERT does (on)",
    "scale-encoder-embedding": "multiply the source's by sqrt(d)",
    "scale-decoder-embedding": "multiply the target's by sqrt(d)",
}
# fairseq's own switches, which train.py cannot negate.
OF_FAIRSEQ = {
    "encoder-learned-pos": "learned source positions, not sinusoids (on)",
    "decoder-learned-pos": "learned target positions, not sinusoids (on)",
    "share-all-embeddings": "one embedding table for both sides (if the verifier has one)",
    "share-decoder-input-output-embed": "the output projection is the embedding table (if the "
    "verifier's is)",
}


def numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(
            f"expected comma-separated layer numbers from 1, such as 1,6, not {text!r}"
        )
    return list(map(int, parts))


def main(args: argparse.Namespace) -> None:
    # Imported late, because fairseq takes seconds and --help should not.
    from specdec_plugins.formats.checkpoints import save_checkpoint
    from specdec_plugins.training.initialise import initialise_drafter

    inputs = (args.verifier, vars(args)["from"])
    check_output(args.output, "--output", inputs=inputs, replaced=True)
    checkpoint, report = initialise_drafter(args)
    save_checkpoint(checkpoint, args.output)
    stream = sys.stderr if args.print_flags else sys.stdout
    print("\n".join(report), f"wrote {args.output}", sep="\n", file=stream)
    if args.print_flags:
        print(" ".join(architecture_flags(checkpoint["args"])))


def architecture_flags(settings: argparse.Namespace) -> list[str]:
    """The flags with which train.py builds the network that a checkpoint holds."""

    def value(name: str) -> object:
        return getattr(settings, name.replace("-", "_"))

    flags = []
    for name in ("arch", "activation-fn", *SIZES, *POSITIONS):
        flags += [f"--{name}", str(value(name))]
    flags += [f"--{name}" if value(name) else f"--no-{name}" for name in SWITCHES]
    return flags + [f"--{name}" for name in OF_FAIRSEQ if value(name)]


_NUMBER = cli.at_least(1)
_FAST = ("freeze-encoder", "sequential-head", "head-attention", "cached-prefix", "swish",
         "encoder-normalize-before", "layernorm-embedding")  # fmt: skip
COMMAND = cli.CommandLine(
    "encoder_initial.py",
    "Write the drafter's initial checkpoint: its encoder taken from a trained verifier.",
    main,
    [
        ("--verifier", cli.REQUIRED, Path, "checkpoint of the verifier"),
        ("--output", cli.REQUIRED, Path, "checkpoint to write"),
        ("--data", None, Path, "the drafter's data folder, to check dictionaries"),
        ("--verifier-data", None, Path, "the verifier's data folder"),
        ("--from", None, Path, "an earlier drafter with the same network (checkpoint or bundle), "
         "whose weights initialise all that is not the verifier's"),
        ("--seed", 1, int, "for newly initialised weights"),
        ("--init-decoder-from-verifier", None, cli.EITHER, "copy the decoder's layers too, as far "
         "as the verifier has them"),
        ("--decoder-layers-from", None, numbers, "which of the verifier's decoder layers to copy, "
         "counted from 1, such as 1,6 (default: spread evenly from the first to the last; the "
         "last if only one is copied)"),
        ("--copy-positions", None, cli.EITHER, "start learned positions from the verifier's: the "
         "encoder's, and the decoder's if it scales its embeddings"),
        ("--print-flags", False, bool, "print nothing but the flags for train.py that fit the "
         "checkpoint, for scripts"),
        *((f"--{name}", None, _NUMBER, "default: the verifier's") for name in SIZES),
        *((f"--{name}", None, _NUMBER, "default: 1000") for name in POSITIONS),
        *((f"--{name}", None, cli.EITHER, text) for name, text in (SWITCHES | OF_FAIRSEQ).items()),
    ],
    removed=dict.fromkeys(
        ["--arch", *(f"--{no}{name}" for name in _FAST for no in ("", "no-"))],
        "this command makes the published drafter, block; specdec drafter trains the faster one "
        "from a verifier",
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(COMMAND.run())
