"""The routes of the server."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from tokenwire_reference.doors import (
    adapters,
    embeddings,
    info,
    items,
    load,
    openapi,
    scores,
    sglang,
    tokenization,
    vllm,
)
from tokenwire_reference.doors.errors import RefusalError, refusal_answer
from tokenwire_reference.doors.fault_package import fault_middleware
from tokenwire_reference.doors.heads import RefuseHeads, too_long
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.keys import without_key
from tokenwire_reference.doors.openapi import BodyRoute
from tokenwire_reference.doors.request_manager import ClientLeftError
from tokenwire_reference.doors.served import Served, served_by

logger = logging.getLogger(__name__)
CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
SGLANG_ROUTES = [
    BodyRoute("/load_lora_adapter", adapters.load_adapter, "load-adapter-request"),
    BodyRoute("/unload_lora_adapter", adapters.unload_adapter, "unload-adapter-request"),
    BodyRoute(CHAT_PATH, sglang.chat.chat_completions, "chat-request"),
    BodyRoute(COMPLETIONS_PATH, sglang.completions.completions, "completion-request"),
    BodyRoute("/v1/classify", scores.classify, "embedding-request"),
    BodyRoute("/v1/decisions", sglang.decisions.decisions, "sglang-decisions-request"),
    BodyRoute("/v1/systemone", sglang.decisions.systemone, "systemone-request"),
    BodyRoute("/update_weight_version", sglang.control.update_weight_version, "rename-request"),
]
VLLM_ROUTES = [
    BodyRoute("/v1/load_lora_adapter", adapters.load_adapter, "load-adapter-request"),
    BodyRoute("/v1/unload_lora_adapter", adapters.unload_adapter, "unload-adapter-request"),
    BodyRoute(CHAT_PATH, vllm.chat.chat_completions, "vllm-chat-request"),
    BodyRoute(f"{CHAT_PATH}/render", vllm.split.render, "vllm-chat-request"),
    BodyRoute(f"{CHAT_PATH}/derender", vllm.split.derender, "vllm-derender-request"),
    BodyRoute(f"{CHAT_PATH}/batch", vllm.batch.chat_completions, "vllm-batch-request"),
    BodyRoute(COMPLETIONS_PATH, vllm.completions.completions, "vllm-completion-request"),
    BodyRoute(f"{COMPLETIONS_PATH}/render", vllm.split.render_completions, "vllm-completion-request"),
    BodyRoute(
        f"{COMPLETIONS_PATH}/derender", vllm.split.derender_completions, "vllm-derender-completions-request"
    ),
    BodyRoute("/classify", scores.classify, "embedding-request"),
    BodyRoute("/v1/decisions", vllm.decisions.decisions, "decisions-request"),
    BodyRoute("/v1/systemone", vllm.decisions.systemone, "systemone-request"),
    Route("/load", load.server_load, methods=["GET", "POST"]),
    Route("/pause", vllm.control.pause, methods=["POST"]),
    Route("/resume", vllm.control.resume, methods=["POST"]),
    Route("/is_paused", vllm.control.is_paused, methods=["GET"]),
    BodyRoute("/update_weight_version", vllm.control.update_weight_version, "rename-request"),
]
ROUTES = [
    BodyRoute("/generate", sglang.generate.generate, "generate-request", methods=["POST", "PUT"]),
    BodyRoute(items.responses.PATH, items.responses.responses, "responses-request"),
    Route(f"{items.responses.PATH}/{{name}}", items.responses.retrieve, methods=["GET"]),
    Route(f"{items.responses.PATH}/{{name}}", items.responses.delete, methods=["DELETE"]),
    Route(f"{items.responses.PATH}/{{name}}/cancel", items.responses.cancel, methods=["POST"]),
    BodyRoute(items.messages.PATH, items.messages.messages, "messages-request"),
    BodyRoute(f"{items.messages.PATH}/count_tokens", items.messages.count_tokens, "messages-request"),
    BodyRoute("/inference/v1/generate", vllm.generate.generate, "vllm-generate-request"),
    BodyRoute("/inference/v1/abort_requests", vllm.generate.abort_requests, "abort-requests-request"),
    Route("/version", info.version),
    BodyRoute("/v1/embeddings", embeddings.embeddings, "embedding-request"),
    BodyRoute("/encode", embeddings.encode, "encode-request", methods=["POST", "PUT"]),
    BodyRoute("/v1/score", scores.score, "score-request"),
    BodyRoute("/v1/rerank", scores.rerank, "rerank-request"),
    BodyRoute("/tokenize", tokenization.tokenize, "tokenize-request"),
    BodyRoute("/v1/tokenize", tokenization.tokenize, "tokenize-request"),
    BodyRoute("/detokenize", tokenization.detokenize, "detokenize-request"),
    BodyRoute("/v1/detokenize", tokenization.detokenize, "detokenize-request"),
    Route("/server_info", info.server_info),
    Route("/get_server_info", info.server_info),
    Route("/model_info", info.model_info),
    Route("/get_model_info", info.model_info),
    Route("/v1/models", info.models),
    Route("/v1/models/{name:path}", info.model),
    Route("/health", info.health),
    Route("/health_generate", info.health),
    Route("/ready", info.ping),
    Route("/ping", info.ping),
    Route("/", info.root),
    Route("/openapi.json", openapi.openapi),
    Route("/v1/loads", load.loads),
    Route("/get_load", load.get_load),
    Route("/metrics", load.metrics),
    BodyRoute("/abort_request", sglang.control.abort_request, "abort-request"),
    Route("/flush_cache", sglang.control.flush_cache, methods=["POST"]),
    BodyRoute("/pause_generation", sglang.control.pause_generation, "pause-request"),
    BodyRoute("/update_weights_from_disk", sglang.control.update_weights, "update-weights-request"),
    BodyRoute("/open_session", sglang.control.open_session, "open-session-request"),
    BodyRoute("/close_session", sglang.control.close_session, "close-session-request"),
    BodyRoute("/continue_generation", sglang.control.continue_generation, "continue-request", empty=True),
]


def build_app(served: Served, lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    """Return the application with its routes."""
    app = Starlette(
        lifespan=lifespan,
        routes=[*ROUTES, *(VLLM_ROUTES if served.args.api_dialect == "vllm" else SGLANG_ROUTES)],
        middleware=[
            Middleware(OneBoundary, dialect=served.args.api_dialect),
            Middleware(RefuseHeads, args=served.args, why=too_long),
            Middleware(RefuseHeads, args=served.args, why=without_key),
            fault_middleware(served.args),
        ],
        exception_handlers={
            RefusalError: _refused,
            ClientLeftError: _client_left,
            HTTPException: _http_error,
        },
    )
    app.state.served = served
    return app


async def _refused(http_request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    return refusal_answer(http_request.url.path, error, served_by(http_request).args.api_dialect)


async def _client_left(_: HttpRequest, __: Exception) -> Response:
    return Response(status_code=499)


async def _http_error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = json_answer({"detail": error.detail}, error.status_code)
    answer.headers.update(error.headers or {})
    return answer


class OneBoundary:
    """Turns any exception of an endpoint into one line of the log, and into a refusal if no answer has begun.

    The traceback is logged at the level debug.
    """

    def __init__(self, app: ASGIApp, dialect: str) -> None:
        self._app = app
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = False

        async def note_and_send(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        try:
            await self._app(scope, receive, note_and_send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            refusal = RefusalError.of_failure(error)
            logger.error("%s %s failed: %.300s", scope["method"], scope["path"], refusal.message)  # noqa: TRY400
            logger.debug("its traceback", exc_info=error)
            if not answering:
                await refusal_answer(scope["path"], refusal, self._dialect)(scope, receive, send)
