"""Reads request bodies, parses them strictly, and validates them against their schema."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

import jsonschema_rs
import orjson
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from tokenwire_reference.doors.body_size import MOST_DEPTH, refuse_deep, refuse_many_values, stand_in, where
from tokenwire_reference.doors.errors import INVALID, MALFORMED, RefusalError
from tokenwire_reference.doors.heads import body_too_long
from tokenwire_reference.doors.json_answer import Json
from tokenwire_reference.doors.keys import refuse_control
from tokenwire_reference.doors.request_manager import ClientLeftError
from tokenwire_reference.doors.schemas import (
    DISAGGREGATED,
    integer_fields,
    known_fields,
    object_fields,
    request_schema,
)
from tokenwire_reference.doors.served import Served, served_by

LONG_BODY_BYTES = 4 * 1024
"""The size above which a body is processed in a thread.

The size is the number of bytes times the number of samples of each prompt.
"""

Read = TypeVar("Read")


async def understood(http_request: HttpRequest, read: Callable[[], Read]) -> Read:
    """Run a function that processes a body, in a thread if the body is long.

    Raises ClientLeftError if the client disconnects meanwhile.
    """
    if http_request.state.body_work <= LONG_BODY_BYTES:
        return read()
    result = await asyncio.to_thread(read)
    if await http_request.is_disconnected():
        raise ClientLeftError
    return result


async def read_control(
    http_request: HttpRequest, schema: str, *, empty: bool = False
) -> tuple[Served, dict[str, Any]]:
    """Return the server that a control call addresses, and the body of the call.

    Raises RefusalError without permission.
    """
    refuse_control(http_request)
    return served_by(http_request), await read_body(http_request, schema, empty=empty)


async def read_body(
    http_request: HttpRequest, schema: str, *filled: str, empty: bool = False
) -> dict[str, Any]:
    """Return those fields of a body that its schema defines. Fields in `filled` must not be empty."""
    given = await read_object(http_request, empty=empty)
    for name in filled:
        if given.get(name) in ("", []):
            raise RefusalError(f"{name} is empty; send what has tokens", param=name)
    return await understood(http_request, lambda: hold_against_schema(given, schema))


async def read_object(http_request: HttpRequest, *, empty: bool = False) -> dict[str, Any]:
    """Return the JSON object in a request; with `empty`, a missing body counts as an empty object.

    Raises RefusalError for any other body.
    """
    content = await _read(http_request, served_by(http_request).args.max_body_bytes)
    http_request.state.body_work = len(content)
    http_request.state.body = {}
    if empty and not content:
        return {}
    content_type = http_request.headers.get("content-type", "")
    if content_type.split(";")[0].strip().lower() != "application/json":
        raise RefusalError(
            f"content-type is {content_type!r}; send the body as application/json", type=MALFORMED
        )
    body = await understood(http_request, lambda: _parsed(content))
    http_request.state.body_work *= max(1, min(_samples(body), 128))
    http_request.state.body = {name: value for name, value in body.items() if name in DISAGGREGATED}
    return body


def _parsed(content: bytes) -> dict[str, Any]:
    """Parse a body within limits. Raises RefusalError if it is not a JSON object, or too large."""
    refuse_many_values(content)
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise RefusalError(f"the body is not JSON: {error}", type=MALFORMED) from error
    if content.count(b"[") + content.count(b"{") > MOST_DEPTH:
        refuse_deep(body)
    if not isinstance(body, dict):
        raise RefusalError(f"the body is a JSON {type(body).__name__}; send an object", type=MALFORMED)
    return body


def _samples(body: Mapping[str, Any]) -> int:
    """Return the largest number of samples of each prompt that any field of the body requests."""
    params = body.get("sampling_params")
    owners = [body, *(params if isinstance(params, list) else [params])]
    counts = [owner.get("n") for owner in owners if isinstance(owner, dict)]
    return max((count for count in counts if isinstance(count, int)), default=1)


async def _read(http_request: HttpRequest, most: int) -> bytes:
    """Return the bytes of a body.

    Raises RefusalError if the body is too long, and ClientLeftError if it is incomplete.
    """
    body = bytearray()
    try:
        async for part in http_request.stream():
            body += part
            if len(body) > most:
                raise body_too_long(most)
    except ClientDisconnect as left:
        raise ClientLeftError from left
    return bytes(body)


def hold_against_schema(body: dict[str, Any], schema: str) -> dict[str, Any]:
    """Return the fields of a body that its schema defines. Other fields must not be read, because nothing
    bounds their values.

    Raises RefusalError for the first error of the schema.
    """
    slim = stand_in(body, request_schema(schema))
    error = next(_validator(schema).iter_errors(slim), None)
    if error is not None:
        problems = _most_telling(error)
        place = where(problems[0].instance_path) or "the body"
        message = ", and ".join(dict.fromkeys(problem.message for problem in problems))
        malformed = any(isinstance(problem.kind, _KINDS_OF_SHAPE) for problem in problems)
        raise RefusalError(
            f"{place}: {_shortened(message)}", type=MALFORMED if malformed else INVALID, param=place
        )
    _refuse_integral_floats(slim, (), integer_fields(schema), object_fields(schema))
    return known_fields(body, schema)


def refuse_unsupported(body: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise RefusalError for a field that would be ignored silently."""
    for name in names:
        if body.get(name):
            raise RefusalError(f"{name} is not supported by the reference engine; leave it out", param=name)


def _shortened(message: str) -> str:
    """Return a message shortened in the middle, because the error is described at the end."""
    return message if len(message) <= 300 else f"{message[:100]} … {message[-150:]}"


_KINDS_OF_SHAPE = (
    jsonschema_rs.ValidationErrorKind.Type,
    jsonschema_rs.ValidationErrorKind.Required,
    jsonschema_rs.ValidationErrorKind.AdditionalProperties,
    jsonschema_rs.ValidationErrorKind.Enum,
)
"""The kinds of validation errors that concern the structure of a body rather than a value in the body."""


@cache
def _validator(schema: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(request_schema(schema))


def _most_telling(error: jsonschema_rs.ValidationError) -> list[jsonschema_rs.ValidationError]:
    """Return the errors to report.

    If a value fits no alternative of a schema, report the error of the alternative that fits best.
    """
    alternatives = [branch[0] for branch in getattr(error.kind, "context", ()) if branch]
    if not alternatives:
        return [error]
    best = max(alternatives, key=_fit)
    if _fit(best) == (False, len(error.instance_path)):
        return alternatives
    return _most_telling(best)


def _fit(error: jsonschema_rs.ValidationError) -> tuple[bool, int]:
    """Return a sort key of how well a value fits an alternative: the right types, and the depth of the
    error.
    """
    return not isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Type), len(error.instance_path)


def _refuse_integral_floats(
    value: Json, path: tuple[str | int, ...], integers: Collection[str], objects: Collection[str]
) -> None:
    """Refuse numbers such as 6.0 for integers.

    JSON Schema accepts 6.0 as an integer, but the specification does not.
    """
    match value:
        case float():
            raise RefusalError(f"{where(path)}: {value} is not an integer", type=MALFORMED)
        case list():
            for index, inner in enumerate(value):
                _refuse_integral_floats(inner, (*path, index), integers, objects)
        case dict():
            for key, inner in value.items():
                if key in integers or key in objects:
                    _refuse_integral_floats(inner, (*path, key), integers, objects)
