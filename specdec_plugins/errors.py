"""The one error that a user may see without a stack trace."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input or an impossible setting, said in one sentence.

    The message names the file, line or flag, what was expected, and what to do about it. Command
    lines print it to standard error and exit with a status other than 0; anything that is not a
    ``UserError`` is a bug of ours and keeps its stack trace.
    """


def not_installed(package: str, extra: str) -> UserError:
    """What to say where an optional package is missing; ``extra`` is that of setup.py."""
    return UserError(
        f"{package} is not installed; it comes with the extra {extra!r}: pip install '.[{extra}]' "
        "in the project's folder"
    )
