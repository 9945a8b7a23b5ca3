"""The program in the documentation runs, and says what the documentation says."""

from __future__ import annotations

from tests.programs import python


def test_the_python_example() -> None:
    lines = python("docs/example.py").stdout.splitlines()
    assert lines[0] == "Zwei Hunde spielen im Schnee."
    assert lines[1].startswith("  tokens Zwei Hunde ")
    assert sum(line.startswith("  so far: Ein Mann") for line in lines) == 2
    assert lines[-2] == "['Zwei', 'Hunde', 'laufen', '.']"
    assert lines[-1].endswith("tokens a round")
