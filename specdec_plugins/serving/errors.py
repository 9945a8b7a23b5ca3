"""The errors that callers get in place of a translation."""

from __future__ import annotations

from collections.abc import Mapping

HUNG_UP = 499  # never sent: what proxies log for a client that hung up

# The error type of each status, for programs; docs/serving.md says when each is sent.
KINDS = {
    400: "bad_request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "bad_request",
    413: "too_large",
    415: "bad_request",
    422: "validation",
    429: "overloaded",
    HUNG_UP: "cancelled",
    500: "internal",
    501: "not_installed",
    503: "stopping",
    504: "timeout",
}

STOPPED = (503, "The server is shutting down; try another one.")


class ServiceError(Exception):
    """An HTTP status and a message for people."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers

    @property
    def kind(self) -> str:
        return KINDS.get(self.status, "bad_request")
