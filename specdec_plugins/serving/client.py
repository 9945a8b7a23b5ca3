"""A client of the server in plain Python: nothing to install but this file's package."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specdec_plugins.errors import UserError

DEFAULT_URL = "http://127.0.0.1:8080"
_BROKEN = (OSError, http.client.HTTPException)  # what a connection may fail with at any time


class ClientError(UserError):
    """The server said no, or cannot be reached."""

    def __init__(self, message: str, status: int | None = None, retry_after: float = 0.0) -> None:
        """status: None where there was no answer; retry_after: seconds, where it was busy."""
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Client:
    """Talks to one server. Safe between threads: every call is a connection of its own."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        timeout: float = 180.0,
        patience: float = 60.0,
    ) -> None:
        """timeout: seconds without a byte; patience: seconds to try again where it is busy."""
        self.url = url.rstrip("/")
        self._api_key = api_key
        self._timeout = timeout
        self._patience = patience

    def translate(self, text: str | Sequence[str], **fields: Any) -> Any:
        """A text's translation, or a list of them for a list; `fields` as POST /translate has.

        With `alternatives` the whole answer. Raises ClientError.
        """
        languages: dict[str, Any] = {}
        if not {"source", "target"} <= fields.keys():
            info = self._ask("/info", None, "source", "target")
            # A server with several languages may have no defaults.
            languages = {"source": info["source"] or "auto", "target": info["target"] or ""}
        q = text if isinstance(text, str) else list(text)
        answer = self._ask("/translate", {"q": q, **languages, **fields}, "translatedText")
        return answer if fields.get("alternatives") else answer["translatedText"]

    def generate(self, text: str, **parameters: Any) -> dict[str, Any]:
        """The answer of POST /generate; `parameters` such as beta=3, details=True.

        Raises ClientError.
        """
        body = {"inputs": text, "parameters": parameters}
        return self._ask("/generate", body, "generated_text")

    def stream(self, text: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """The events of POST /generate_stream as they come. Stop reading to cancel it.

        Raises ClientError, also where the stream ends before the event with the whole text.
        """
        body = {"inputs": text, "parameters": parameters}
        is_whole = False
        with self._answer("/generate_stream", body) as response:
            for line in response:
                # A line that was cut has no end.
                if line.startswith(b"data:") and line.endswith(b"\n"):
                    event = _object(line.removeprefix(b"data:"), self.url)
                    if "error" in event:
                        raise ClientError(str(event["error"]), 500)
                    is_whole = event.get("generated_text") is not None
                    yield event
        if not is_whole:
            raise ClientError(f"{self.url}: its answer broke off; try again.")

    def info(self) -> dict[str, Any]:
        """The answer of GET /info. Raises ClientError."""
        return self._ask("/info", None)

    def _ask(self, path: str, body: dict[str, Any] | None, *fields: str) -> dict[str, Any]:
        """The whole answer, which must have these fields."""
        with self._answer(path, body) as response:
            return _object(response.read(), self.url + path, *fields)

    @contextmanager
    def _answer(self, path: str, body: dict[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        """What the server sends, to be read; what goes wrong meanwhile becomes a ClientError."""
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url + path, data, headers)
        except ValueError as error:
            raise ClientError(f"{self.url}: is no address such as {DEFAULT_URL}.") from error
        with self._open(request) as response:
            try:
                yield response
            except _BROKEN as error:
                reason = str(error) or type(error).__name__
                raise ClientError(f"{self.url}: its answer broke off ({reason}).") from error

    def _open(self, request: urllib.request.Request) -> Any:
        end = time.monotonic() + self._patience
        while True:
            try:
                return urllib.request.urlopen(request, timeout=self._timeout)
            except urllib.error.HTTPError as error:
                refusal = _refusal(error)
                if error.code != 429 or time.monotonic() + refusal.retry_after > end:
                    raise refusal from error
                time.sleep(refusal.retry_after)
            except _BROKEN as error:
                reason = getattr(error, "reason", error)
                raise ClientError(f"{self.url}: cannot be reached ({reason}).") from error


def _object(data: bytes, address: str, *fields: str) -> dict[str, Any]:
    """What an address sent as a JSON object; raises ClientError where that is not so.

    fields: what it must have, for other servers speak JSON as well.
    """
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ClientError(f"{address}: answered with what is no JSON ({error}).") from error
    if not isinstance(found, dict) or not found.keys() >= set(fields):
        raise ClientError(
            f"{address}: answered with JSON that is not this project's; check the address."
        )
    return found


def _refusal(error: urllib.error.HTTPError) -> ClientError:
    with error:
        try:
            message = json.load(error)["error"]
        except (ValueError, KeyError, TypeError, *_BROKEN):
            message = f"The server answered with status {error.code}."
    after = error.headers.get("Retry-After", "1")
    return ClientError(message, error.code, float(after) if after.isdecimal() else 1.0)
