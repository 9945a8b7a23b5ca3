"""Bodies of requests into checked records, and what is wrong with them into sentences."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from specdec_plugins.serving.faults import BadRequest, Invalid

M = TypeVar("M", bound=BaseModel)

_FORM = "application/x-www-form-urlencoded"
_LISTS = frozenset({"q"})  # form fields that may stand more than once


def body_of(model: type[M]) -> Callable[[Request], Awaitable[M]]:
    """A dependency that reads a JSON object, or a form where it says that it is one.

    curl calls everything a form that does not say otherwise, so a form that begins as JSON does
    is read as JSON. Raises BadRequest or Invalid.
    """

    async def read(request: Request) -> M:
        data = await request.body()
        is_form = request.headers.get("content-type", "").partition(";")[0].strip() == _FORM
        values = _form(data) if is_form and data.lstrip()[:1] != b"{" else _json(data)
        try:
            return model.model_validate(values)
        except ValidationError as error:
            raise Invalid(first_fault(error)) from error

    return read


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """For FastAPI's `openapi_extra`: the body that `body_of` reads, records inlined."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def inlined(value: Any) -> Any:
        if isinstance(value, list):
            return [inlined(item) for item in value]
        if isinstance(value, dict):
            name = value.get("$ref", "").rpartition("/")[2]
            return inlined(parts[name]) if name else {k: inlined(v) for k, v in value.items()}
        return value

    content = {"application/json": {"schema": inlined(schema)}}
    return {"requestBody": {"required": True, "content": content}}


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8 (byte {error.start}).") from error


def _json(data: bytes) -> dict[str, Any]:
    try:
        values = json.loads(_text(data))
    except json.JSONDecodeError as error:
        raise BadRequest(
            f"The body is not JSON (line {error.lineno}, column {error.colno}: {error.msg})."
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"The body is not JSON that can be read ({error}).") from error
    if b"\\u" in data and not _is_text(values):
        raise BadRequest("The body escapes half a character (a lone surrogate); send all of it.")
    if not isinstance(values, dict):
        raise BadRequest("The body must be a JSON object, in braces.")
    return values


def _is_text(values: Any) -> bool:
    """False where a string holds what no encoder can write, which JSON's escapes can spell."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _form(data: bytes) -> dict[str, Any]:
    try:
        fields = urllib.parse.parse_qs(
            _text(data), keep_blank_values=True, errors="strict", max_num_fields=1000
        )
    except UnicodeDecodeError as error:
        raise BadRequest("The form's fields are not UTF-8.") from error
    except ValueError as error:
        raise BadRequest(f"The form cannot be read ({error}).") from error
    return {
        name: values if name in _LISTS and len(values) > 1 else values[-1]
        for name, values in fields.items()
    }


def first_fault(error: ValidationError) -> str:
    """Where the first fault is, and what."""
    fault = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"][:1].upper() + fault["msg"][1:]
    sentence = f"{where}: {message}" if where else message
    return sentence.rstrip(".") + "."
