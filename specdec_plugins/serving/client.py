"""A client of the server in plain Python: nothing to install but this file's package."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from specdec_plugins.errors import UserError

DEFAULT_URL = "http://127.0.0.1:8080"


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
            info = self.info()
            languages = {"source": info["source"], "target": info["target"]}
        q = text if isinstance(text, str) else list(text)
        answer = self._post("/translate", {"q": q, **languages, **fields})
        return answer if fields.get("alternatives") else answer["translatedText"]

    def generate(self, text: str, **parameters: Any) -> dict[str, Any]:
        """The answer of POST /generate; `parameters` such as beta=3, details=True."""
        answer: dict[str, Any] = self._post("/generate", {"inputs": text, "parameters": parameters})
        return answer

    def stream(self, text: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """The events of POST /generate_stream as they come. Stop reading to cancel it."""
        body = {"inputs": text, "parameters": parameters}
        with self._open(self._request("/generate_stream", body)) as response:
            for line in response:
                if line.startswith(b"data:"):
                    event = json.loads(line.removeprefix(b"data:"))
                    if "error" in event:
                        raise ClientError(event["error"], 500)
                    yield event

    def info(self) -> dict[str, Any]:
        """The answer of GET /info."""
        with self._open(self._request("/info", None)) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        with self._open(self._request(path, body)) as response:
            return json.load(response)

    def _request(self, path: str, body: dict[str, Any] | None) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            return urllib.request.Request(self.url + path, data, headers)
        except ValueError as error:
            raise ClientError(f"{self.url}: is no address such as {DEFAULT_URL}.") from error

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
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                raise ClientError(f"{self.url}: cannot be reached ({reason}).") from error


def _refusal(error: urllib.error.HTTPError) -> ClientError:
    with error:
        try:
            message = json.load(error)["error"]
        except (ValueError, KeyError, TypeError):
            message = f"The server answered with status {error.code}."
    after = error.headers.get("Retry-After", "1")
    return ClientError(message, error.code, float(after) if after.isdecimal() else 1.0)
