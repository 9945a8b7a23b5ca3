"""Write the sample English-German corpus: `python data/sample/generate.py --output DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from sample_corpus import corpus  # noqa: E402  (the package lies beside this file)

STEP = 2000


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder for the seven files")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same bytes")
    parser.add_argument("--train", type=positive, default=24000, help="training pairs")
    parser.add_argument("--dev", type=positive, default=1000, help="validation pairs")
    parser.add_argument("--test", type=positive, default=1000, help="held-out pairs")
    return parser.parse_args(arguments)


def show(split: str, done: int, wanted: int) -> None:
    if done % STEP == 0 or done == wanted:
        print(f"{split}: {done}/{wanted} pairs", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        made = corpus.generate(options.seed, options.train, options.dev, options.test, show)
        digest = corpus.write(made, options.output)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 1
    print("\n".join(corpus.summary(made)))
    print(f"sha256 {digest}  {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
