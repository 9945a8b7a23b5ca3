"""How long one HTTP request may take, whatever it waits for on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TypeVar

from specdec_plugins.serving.faults import TimedOut

T = TypeVar("T")


class Deadline:
    """Begins where it is made, on a running event loop; all work of a request shares it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = asyncio.get_running_loop().time() + seconds

    async def bound(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises TimedOut, after cancelling it, where it is not done then."""
        try:
            async with asyncio.timeout_at(self._end):
                return await work
        except TimeoutError as error:
            raise TimedOut(
                f"The translation took longer than {self._seconds:g} seconds."
            ) from error

    async def each(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The items, each with the work that goes into it bound; closes `items` in any case.

        Bound one by one, because what happens between them is the reader's: an end that came
        there would cancel the reader.
        """
        async with aclosing(items):
            while True:
                try:
                    item = await self.bound(anext(items))
                except StopAsyncIteration:
                    return
                yield item
