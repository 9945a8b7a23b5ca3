"""Where lines come from and go to."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_plugins.app.files import STANDARD, is_same_place
from specdec_plugins.errors import require


@dataclass(frozen=True)
class FileOptions:
    """Where lines come from and go to, and what is told about them."""

    input_path: str = STANDARD
    output_path: str = STANDARD
    json_path: str | None = None
    prefix_file: str | None = None
    prefix_column: bool = False
    buffer_size: int | None = None  # lines; None = 1000, and 1 at a terminal
    resume: bool = False
    progress: bool | None = None  # None = where standard error is a terminal
    quiet: bool = False
    diagnose: bool = False
    diagnose_targets: str | None = None
    debug: bool = False

    def __post_init__(self) -> None:
        require(
            self.buffer_size is None or self.buffer_size >= 1,
            f"--buffer-size must be 1 or more, not {self.buffer_size}.",
        )
        require(
            not (self.prefix_file and self.prefix_column),
            "--prefix-file and --prefix-column exclude each other; give one of them.",
        )
        for flag, path in (("--output-path", self.output_path), ("--json-path", self.json_path)):
            require(
                not (self.resume and path == STANDARD),
                f"--resume continues a file; give {flag} a file name, not {STANDARD!r}.",
            )
        require(
            self.json_path is None or not is_same_place(self.json_path, self.output_path),
            "--json-path and --output-path name the same place; give them two.",
        )
        require(
            self.inputs.count(STANDARD) <= 1,
            "Only one of --input-path, --prefix-file and --diagnose-targets can be standard input.",
        )
        require(
            self.diagnose or self.diagnose_targets is None,
            "--diagnose-targets belongs to --diagnose; add it.",
        )

    @property
    def outputs(self) -> list[str]:
        """Files that are written line by line, the translations first."""
        return [path for path in (self.output_path, self.json_path) if path is not None]

    @property
    def inputs(self) -> list[str]:
        """Files that are read side by side, the sentences first."""
        beside = (self.prefix_file, self.diagnose_targets)
        return [self.input_path, *(path for path in beside if path is not None)]
