"""What is refused, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specdec_plugins.errors import BAD_INPUT, UserError


def refused(message: str, call: Callable[..., object], /, *given: Any, **named: Any) -> None:
    """That call with what is given ends in a sentence which the pattern matches."""
    with pytest.raises(UserError, match=message):
        call(*given, **named)


def told(capsys: pytest.CaptureFixture[str], program: Callable[..., object], *given: object) -> str:
    """The one line that a program says before it ends with the status of bad input."""
    capsys.readouterr()
    try:
        status = program(*given)
    except SystemExit as ended:
        status = ended.code
    error = capsys.readouterr().err
    assert (status, error.count("\n")) == (BAD_INPUT, 1), error
    return error
