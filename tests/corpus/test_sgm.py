"""WMT's SGML."""

from __future__ import annotations

import pytest

from specdec_plugins.corpus.wmt import check_same_segments, parse_sgm
from specdec_plugins.errors import UserError

SGM = """<srcset setid="x" srclang="any">
<doc sysid="src" docid="one" genre="news">
<hl>
<seg id="1">A title &amp; more</seg>
</hl>
<p>
<seg id="2"> two  lines
in one &lt;b&gt; AT&T </seg>
<seg id="3"></seg>
</p>
</doc>
<DOC docid="two"><SEG id=1>Last</SEG></DOC>
</srcset>
"""


def test_segments_in_order_and_empty_ones_stay() -> None:
    assert parse_sgm(SGM, "x") == [
        ("one", "1", "A title & more"),
        ("one", "2", "two lines in one <b> AT&T"),
        ("one", "3", ""),
        ("two", "1", "Last"),
    ]


def test_what_is_no_test_set_is_refused() -> None:
    with pytest.raises(UserError, match="x: no <seg> found"):
        parse_sgm("<html></html>", "x")


def test_sides_must_hold_the_same_segments() -> None:
    segments = parse_sgm(SGM, "x")
    check_same_segments(segments, [(d, n, "other") for d, n, _ in segments], "x")
    with pytest.raises(UserError, match="4 source segments, 3"):
        check_same_segments(segments, segments[:3], "x")
    with pytest.raises(UserError, match="segment 1 of document 'one' stands where"):
        check_same_segments(segments, [segments[1], segments[0], *segments[2:]], "x")
