"""Writes JSON answers of the server."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

Json = Any
"""A JSON value."""


def to_json(value: Json) -> bytes:
    """Return strict JSON in UTF-8; NaN and infinities become null. Raises TypeError for values outside
    JSON.
    """
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)


def json_answer(value: Json, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")
