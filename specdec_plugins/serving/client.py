"""A client of the server in plain Python; it needs no package but this one."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specdec_plugins.errors import UserError

KEY_VARIABLE = "SPECDEC_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8080"
_BROKEN = (OSError, http.client.HTTPException)  # errors that a connection may raise at any time


class ClientError(UserError):
    """The server refused the request, or cannot be reached."""

    def __init__(self, message: str, status: int | None = None, retry_after: float = 0.0) -> None:
        """status: None if there was no answer; retry_after: seconds, if the server was busy."""
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Client:
    """A client of one server. Thread-safe: every call opens its own connection."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        timeout: float = 180.0,
        patience: float = 60.0,
    ) -> None:
        """timeout: seconds without a byte; patience: seconds to retry while it is busy."""
        self.url = url.rstrip("/")
        self._api_key = api_key
        self._timeout = timeout
        self._patience = patience

    def translate(self, text: str | Sequence[str], **fields: Any) -> Any:
        """A text's translation, or a list of them for a list; `fields` as in POST /translate.

        With `alternatives`, the whole answer. Raises ClientError.
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

        Raises ClientError, also if the stream ends before the event with the whole text.
        """
        body = {"inputs": text, "parameters": parameters}
        is_whole = False
        with self._answer("/generate_stream", body) as response:
            for line in response:
                # A truncated line has no newline.
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
        """The server's response, to be read; errors while reading become ClientError."""
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            known = urllib.parse.urlsplit(self.url)
            is_address = known.scheme in ("http", "https") and bool(known.hostname)
        except ValueError:
            is_address = False
        if not is_address:
            raise ClientError(f"{self.url!r} is not an address; give one such as {DEFAULT_URL}.")
        request = urllib.request.Request(self.url + path, data, headers)
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
    """An address's answer as a JSON object. Raises ClientError if it is none.

    fields: those that it must have, as other servers speak JSON as well.
    """
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ClientError(f"{address}: the answer is not JSON ({error}).") from error
    if not isinstance(found, dict) or not found.keys() >= set(fields):
        raise ClientError(
            f"{address}: the answer is JSON, but not from a specdec server; check the address."
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
