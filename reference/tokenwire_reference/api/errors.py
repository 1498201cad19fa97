"""How a request is refused, in the shapes that SGLang answers with."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from tokenwire_reference.api.json_answer import json_answer
from tokenwire_reference.request import FinishReason

MALFORMED = "Bad Request"
"""`type` of a body that is not JSON or does not fit its schema."""
INVALID = "BadRequestError"
"""`type` of a value that cannot be used."""
UNCONVERTIBLE = "BadRequest"
"""`type` of a chat request that cannot be turned into one for the engine."""


class RefusalError(Exception):
    """A request that is answered with an error. The message names the field, its value and the way out."""

    def __init__(self, message: str, *, type: str = INVALID, status: int = 400) -> None:  # noqa: A002
        super().__init__(message)
        self.message = message
        self.type = type
        self.status = status

    @classmethod
    def of_abort(cls, finish: FinishReason) -> RefusalError | None:
        """The refusal that an abort by the server stands for; None for any other finish."""
        status = finish.status_code
        if finish.type != "abort" or status is None:
            return None
        message = finish.message or HTTPStatus(status).phrase
        return cls(message, type=INVALID if status == 400 else str(status), status=status)

    def flat(self) -> dict[str, Any]:
        """The error object of the OpenAI routes, and of bodies that could not be read."""
        return {
            "object": "error",
            "message": self.message,
            "type": self.type,
            "param": None,
            "code": self.status,
        }


def refusal_answer(path: str, refusal: RefusalError) -> Response:
    """The answer to a refused request. `/generate` nests what is wrong with a value; all else is flat."""
    if path == "/generate" and refusal.type == INVALID:
        return json_answer({"error": {"message": refusal.message}}, refusal.status)
    return json_answer(refusal.flat(), refusal.status)
