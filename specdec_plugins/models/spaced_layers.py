"""Which layers of a deep network a shallower one begins as."""

from __future__ import annotations


def spaced_layers(num_wanted: int, num_given: int) -> list[int]:
    """Numbers, from 0, of the given layers that the wanted ones begin as.

    First and last, and evenly between, as in Shleifer and Rush 2020 (pre-trained summarization
    distillation), section 3.2. A lone one begins as the last: what that gives is what the output
    projection reads, and begun as the first it learns much more slowly.
    """
    if num_wanted == 1:
        return [num_given - 1]
    return [index * (num_given - 1) // (num_wanted - 1) for index in range(num_wanted)]
