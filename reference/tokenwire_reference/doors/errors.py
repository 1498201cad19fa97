"""Refusals of requests, in the shapes of SGLang and vLLM."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from tokenwire_reference.core.request import FinishReason
from tokenwire_reference.doors.json_answer import json_answer

MALFORMED = "Bad Request"
"""The `type` for a body that is not JSON or does not fit its schema."""
INVALID = "BadRequestError"
"""The `type` for a value that cannot be used."""
UNCONVERTIBLE = "BadRequest"
"""The `type` for a chat request that cannot be converted for the engine."""
UNAUTHORIZED = "AuthenticationError"
"""The `type` for a request without the required key."""


class RefusalError(Exception):
    """A request is refused. The message names the field, its value and the way out."""

    def __init__(
        self,
        message: str,
        *,
        type: str = INVALID,  # noqa: A002
        status: int = 400,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.type = type
        self.status = status
        self.param = param

    @classmethod
    def of_abort(cls, finish: FinishReason) -> RefusalError | None:
        """Return the refusal for a request that the server aborted; None for any other finish reason."""
        status = finish.status_code
        if finish.type != "abort" or status is None:
            return None
        message = finish.message or HTTPStatus(status).phrase
        return cls(message, type=INVALID if status == 400 else str(status), status=status)

    @classmethod
    def of_failure(cls, error: Exception) -> RefusalError:
        """Return the refusal for an error: the error itself if it is a refusal, otherwise a refusal that
        describes a failure of the server.
        """
        if isinstance(error, cls):
            return error
        return cls(f"{type(error).__name__}: {error}", type="InternalServerError", status=500)

    def native_event(self) -> dict[str, Any]:
        """Return the last event of a `/generate` stream that failed."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "code": self.status, "retryable": False}
        return {"error": error}

    def flat_event(self) -> dict[str, Any]:
        """Return the last event of a stream of SGLang's OpenAI routes that failed."""
        return {"error": self.flat()}

    def typed_event(self) -> dict[str, Any]:
        """Return the error in the shape of `/v1/messages`, also for an event."""
        kinds = {401: "authentication_error", 404: "not_found_error", 503: "overloaded_error"}
        kind = kinds.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def nested(self) -> dict[str, Any]:
        """Return the error in the shape of vLLM, also for an event."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        return {"error": fields}

    def flat(self) -> dict[str, Any]:
        """Return the error object of the OpenAI routes, and of invalid bodies."""
        return {
            "object": "error",
            "message": self.message,
            "type": self.type,
            "param": None,
            "code": self.status,
        }


def refusal_answer(path: str, refusal: RefusalError, dialect: str) -> Response:
    """Return the answer to a refused request.

    SGLang's routes send a flat error object, except `/generate`, which nests most errors. vLLM's routes and
    `/v1/responses` nest all errors. `/v1/messages` has its own shape in both dialects.
    """
    if path.startswith("/v1/messages"):
        shape = refusal.typed_event()
    elif path.startswith(("/inference/", "/v1/responses")) or (dialect == "vllm" and path != "/generate"):
        shape = refusal.nested()
    elif path == "/generate" and refusal.type in {INVALID, MALFORMED, UNAUTHORIZED}:
        shape = {"error": {"message": refusal.message}}
    else:
        shape = refusal.flat()
    answer = json_answer(shape, refusal.status)
    if refusal.status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    return answer
