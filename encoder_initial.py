"""Write the drafter's initial checkpoint: its encoder taken from a trained verifier.

The result is a whole checkpoint of the drafter, so a stock fairseq trainer restores it with
``--restore-file O.pt --reset-optimizer --reset-dataloader --reset-lr-scheduler --reset-meters``.
Train with the architecture flags that were given here.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from specdec_plugins.corpus.cli import at_least
from specdec_plugins.errors import Parser, UserError, refuse

# Sizes that default to the verifier's; those of copied layers must equal them.
SIZES = (
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "encoder_layers",
    "decoder_embed_dim",
    "decoder_ffn_embed_dim",
    "decoder_attention_heads",
    "decoder_layers",
)

# What the published drafter has, in the order of the published command.
SWITCHES = (
    "share_all_embeddings",
    "share_decoder_input_output_embed",
    "src_embedding_copy",
    "encoder_learned_pos",
    "decoder_learned_pos",
    "apply_bert_init",
)

# Switches that only the fast drafter has on; train.py must be told where they are off.
FAST_SWITCHES = (
    "scale_encoder_embedding",
    "scale_decoder_embedding",
    "freeze_encoder",
    "cached_prefix",
)

# What each switch means, and the architectures that have it on unless it is negated.
MEANINGS = {
    "src-embedding-copy": "masked positions get a mixture of the source's embeddings (both)",
    "encoder-learned-pos": "learned source positions, not sinusoids (block; block_fast has what "
    "the verifier has)",
    "decoder-learned-pos": "learned target positions, not sinusoids (both)",
    "apply-bert-init": "weights that start fresh are drawn as BERT's were (block)",
    "freeze-encoder": "the encoder stays the verifier's, whose output the drafter reads "
    "(block_fast)",
    "cached-prefix": "the prefix sees nothing behind it and is computed once (block_fast)",
    "scale-encoder-embedding": "times sqrt(d) (block_fast, if the verifier does)",
    "scale-decoder-embedding": "times sqrt(d) (block_fast)",
    "share-all-embeddings": "one table for both sides (if the verifier has one); frozen with the "
    "encoder",
    "share-decoder-input-output-embed": "the projection is the table (if the verifier's is)",
}


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="encoder_initial.py", description=__doc__.split("\n")[0])
    parser.add_argument("--verifier", type=Path, required=True, help="checkpoint of the verifier")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint to write")
    parser.add_argument("--data", type=Path, help="the drafter's data folder: check dictionaries")
    parser.add_argument("--verifier-data", type=Path, help="the verifier's data folder")
    parser.add_argument("--seed", type=int, default=1, help="of the weights that start fresh")
    switch = argparse.BooleanOptionalAction
    parser.add_argument(
        "--init-decoder-from-verifier",
        action=switch,
        help="copy the decoder's layers too, as far as the verifier has them (block_fast)",
    )
    parser.add_argument(
        "--decoder-layers-from",
        type=_numbers,
        metavar="N,N",
        help="which of the verifier's decoder layers to copy, counted from 1 (default: spread "
        "evenly from the first to the last; the last where there is one to copy to)",
    )
    parser.add_argument(
        "--copy-positions",
        action=switch,
        help="start learned positions from the verifier's: the encoder's, and the decoder's if it "
        "scales its embeddings (block_fast)",
    )
    parser.add_argument(
        "--print-flags",
        action="store_true",
        help="print nothing but the flags for train.py that fit the checkpoint, for scripts",
    )
    parser.add_argument("--debug", action="store_true", help="show stack traces")
    sizes = parser.add_argument_group("the drafter's architecture (default: the verifier's)")
    sizes.add_argument(
        "--arch",
        choices=("block", "block_fast"),
        default="block",
        help="block: as published (default); block_fast: the verifier's encoder as it is, two "
        "decoder layers, a prefix that is computed once. The names in brackets below are those "
        "that have a switch on",
    )
    for name in SIZES:
        sizes.add_argument("--" + name.replace("_", "-"), type=at_least(1), metavar="N")
    sizes.add_argument(
        "--sequential-head",
        type=at_least(0),
        metavar="N",
        help="hidden width of the head that tells each position the token before it; 0 = none "
        "(default: twice the width for block_fast with a tied projection, else 0)",
    )
    for name in ("--max-source-positions", "--max-target-positions"):
        sizes.add_argument(name, type=at_least(1), metavar="N", help="default for block: 1000")
    for name, meaning in MEANINGS.items():
        sizes.add_argument(f"--{name}", action=switch, help=meaning)
    return parser


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(
            f"expected layers, counted from 1, with commas between them, such as 1,6, not {text!r}"
        )
    return list(map(int, parts))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(arguments)
    # Imported late, because fairseq takes seconds and --help should not; it also logs a lot.
    logging.basicConfig(level=logging.WARNING)
    from specdec_plugins.formats.checkpoints import save_checkpoint
    from specdec_plugins.formats.output import check_output
    from specdec_plugins.training.initialise import initialise_drafter

    try:
        check_output(args.output, "--output", replaced=True)
        checkpoint, report = initialise_drafter(args)
        save_checkpoint(checkpoint, args.output)
    except UserError as error:
        if args.debug:
            raise
        return refuse(parser.prog, error)
    stream = sys.stderr if args.print_flags else sys.stdout
    print("\n".join(report), f"wrote {args.output}", sep="\n", file=stream)
    if args.print_flags:
        print(" ".join(architecture_flags(checkpoint["args"])))
    return 0


def architecture_flags(settings: argparse.Namespace) -> list[str]:
    """The flags with which train.py builds the network that a checkpoint holds."""
    flags = ["--arch", settings.arch, "--activation-fn", settings.activation_fn]
    for name in (*SIZES, "max_source_positions", "max_target_positions"):
        flags += ["--" + name.replace("_", "-"), str(getattr(settings, name))]
    flags += ["--sequential-head", str(settings.sequential_head)]
    for name in SWITCHES:
        if getattr(settings, name):
            flags.append("--" + name.replace("_", "-"))
        elif name == "src_embedding_copy":
            flags.append("--no-src-embedding-copy")
    for name in FAST_SWITCHES:
        if getattr(settings, name) != (settings.arch == "block_fast"):
            negation = "no-" if settings.arch == "block_fast" else ""
            flags.append(f"--{negation}{name.replace('_', '-')}")
    return flags


if __name__ == "__main__":
    sys.exit(main())
