"""`python -m specdec_plugins.serving` is specdec-serve."""

from specdec_plugins.serving.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
