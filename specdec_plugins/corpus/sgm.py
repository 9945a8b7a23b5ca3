"""The SGML in which WMT distributes its test sets."""

from __future__ import annotations

import re

from specdec_plugins.errors import UserError

_DOC = re.compile(r'<doc\b[^>]*\bdocid\s*=\s*"([^"]*)"[^>]*>', re.IGNORECASE)
_SEGMENT = re.compile(
    r'<seg\b[^>]*\bid\s*=\s*"?(\w+)"?[^>]*>(.*?)</seg\s*>', re.IGNORECASE | re.DOTALL
)
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}
_ENTITY = re.compile("|".join(_ENTITIES))

Segment = tuple[str, str, str]  # document, number in it, text


def parse_sgm(text: str, name: str) -> list[Segment]:
    """Every segment in order; an empty one stays. Only XML's five entities are resolved.

    (These files are not well-formed XML: many hold bare ampersands.)
    """
    segments: list[Segment] = []
    starts = [(found.start(), found.group(1)) for found in _DOC.finditer(text)]
    starts.append((len(text), ""))
    for (start, document), (end, _) in zip(starts, starts[1:], strict=False):
        for number, line in _SEGMENT.findall(text[start:end]):
            plain = _ENTITY.sub(lambda found: _ENTITIES[found.group()], " ".join(line.split()))
            segments.append((document, number, plain))
    if not segments:
        raise UserError(f"{name}: no <seg> found; expected a WMT test set in SGML")
    return segments


def check_same_segments(source: list[Segment], target: list[Segment], name: str) -> None:
    """Refuse a source and a reference that do not hold the same segments in the same order."""
    if len(source) != len(target):
        raise UserError(f"{name}: {len(source)} source segments, {len(target)} in the reference")
    for left, right in zip(source, target, strict=True):
        if left[:2] != right[:2]:
            raise UserError(
                f"{name}: segment {left[1]} of document {left[0]!r} stands where the reference "
                f"has {right[1]} of {right[0]!r}; fetch the archive again"
            )
