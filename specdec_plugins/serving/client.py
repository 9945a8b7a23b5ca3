"""A client of the server in plain Python; it needs no package but this one."""

from __future__ import annotations

import http.client
import ipaddress
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specdec_plugins.errors import UserError
from specdec_plugins.serving.errors import KINDS

DEFAULT_URL = "http://127.0.0.1:8080"
_STATUSES = {kind: status for status, kind in reversed(KINDS.items())}
_LONGEST_PAUSE = 8.0  # seconds
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
        """timeout: seconds without a byte. patience: seconds to retry while the server is busy or,
        once it has answered, while it cannot be reached, as when it is restarted.
        """
        self.url = url.rstrip("/")
        self._api_key = api_key
        self._timeout = timeout
        self._patience = patience
        self._has_answered = False
        self._languages: dict[str, str] | None = None  # the server's defaults, once known

    def translate(self, text: str | Sequence[str], **fields: Any) -> Any:
        """A text's translation, or a list of them for a list; `fields` as in POST /translate.

        With `alternatives`, the whole answer. Raises ClientError.
        """
        if self._languages is None and not {"source", "target"} <= fields.keys():
            info = self._ask("/info", None, "source", "target")
            # A server with several languages may have no defaults.
            self._languages = {"source": info["source"] or "auto", "target": info["target"] or ""}
        body = {"q": text if isinstance(text, str) else list(text), **(self._languages or {})}
        answer = self._ask("/translate", {**body, **fields}, "translatedText")
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
                        status = _STATUSES.get(event.get("error_type", ""), 500)
                        raise ClientError(str(event["error"]), status)
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
            request = urllib.request.Request(self.url + path, data, headers)
            opener = _opener(self.url)
        except ValueError as error:
            raise ClientError(
                f"{self.url}: not an address; give one such as {DEFAULT_URL}."
            ) from error
        with self._open(request, opener) as response:
            try:
                yield response
            except _BROKEN as error:
                reason = str(error) or type(error).__name__
                raise ClientError(f"{self.url}: its answer broke off ({reason}).") from error

    def _open(self, request: urllib.request.Request, opener: urllib.request.OpenerDirector) -> Any:
        end, pause = time.monotonic() + self._patience, 0.25
        while True:
            try:
                response = opener.open(request, timeout=self._timeout)
                self._has_answered = True
                return response
            except _BROKEN as error:
                failure = self._failure(error)
                passing = (None, 429, 503) if self._has_answered else (429,)
                pause = failure.retry_after or min(2 * pause, _LONGEST_PAUSE)
                if failure.status not in passing or time.monotonic() + pause > end:
                    raise failure from error
            time.sleep(pause)

    def _failure(self, error: Exception) -> ClientError:
        if isinstance(error, urllib.error.HTTPError):
            return _refusal(error)
        return ClientError(f"{self.url}: cannot be reached ({getattr(error, 'reason', error)}).")


def _opener(url: str) -> urllib.request.OpenerDirector:
    """What opens the addresses of a server; on this machine, without the environment's proxies."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        is_here = host == "localhost"
    return urllib.request.build_opener(*[urllib.request.ProxyHandler({})] * is_here)


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
