"""What a caller may be told, each with its HTTP status."""

from __future__ import annotations

import math


class ServiceError(Exception):
    """An answer other than a translation: a status, a kind for programs, a sentence for people."""

    status = 500
    kind = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def headers(self) -> dict[str, str]:
        return {}


class BadRequest(ServiceError):
    """The body cannot be read."""

    status, kind = 400, "bad_request"


class Invalid(ServiceError):
    """The request asks for something that cannot be."""

    status, kind = 422, "validation"


class TooLarge(ServiceError):
    """The request is longer than this server takes."""

    status, kind = 413, "too_large"


class Forbidden(ServiceError):
    """The API key is missing or wrong."""

    status, kind = 403, "forbidden"


class QueueFull(ServiceError):
    """Too much work is waiting already."""

    status, kind = 429, "overloaded"

    def __init__(self, message: str, retry_after: float) -> None:
        """retry_after: seconds until there may be room."""
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, math.ceil(self.retry_after)))}


class Stopping(ServiceError):
    """The server is shutting down and takes no new work."""

    status, kind = 503, "stopping"


class TimedOut(ServiceError):
    """The work took longer than a request may."""

    status, kind = 504, "timeout"


class Gone(ServiceError):
    """The client hung up. Never sent; the status is what proxies log for it."""

    status, kind = 499, "cancelled"


class Failed(ServiceError):
    """Decoding broke; the log has the reason."""

    status, kind = 500, "internal"
