"""Faults in refusals: bad requests that run, and good ones that suffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import orjson

from tokenwire_reference.faults.catalogue import STREAMED, WHOLE, fault
from tokenwire_reference.faults.fault import Fault, Json


def _number(value: Json) -> int:
    return int(value) if isinstance(value, int | float) or (isinstance(value, str) and value.isdigit()) else 0


@fault(
    "malformed-ids-coerced",
    "X24",
    upstream=("vllm-project/vllm PR #9634", "vllm-project/vllm PR #51795"),
    shows_in=(WHOLE,),
)
class MalformedIdsCoerced(Fault):
    """What is no list of integers is made one, and run."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body.get("input_ids")
        if isinstance(ids, str):
            return {**body, "input_ids": [_number(word) for word in ids.split()]}
        if isinstance(ids, list) and ids and not any(isinstance(one, list) for one in ids):
            return {**body, "input_ids": [_number(one) for one in ids]}
        return body


@fault(
    "empty-ids-run",
    "X24",
    upstream=("mmcdermott/MEDS_EIC_AR issue #176",),
    shows_in=(WHOLE,),
)
class EmptyIdsRun(Fault):
    """An empty prompt is given a token and run."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "input_ids": [0]} if body.get("input_ids") == [] else body


@fault(
    "refusal-is-a-server-error",
    "X24",
    upstream=("sgl-project/sglang issue #7727", "NVIDIA/TensorRT-LLM PR #6845"),
)
class RefusalIsAServerError(Fault):
    """A bad request fails with 500: nobody looked at it before it was used."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        return (500 if status == 400 else status), answer


@fault(
    "refusal-is-plain-text",
    "X15",
    upstream=("strands-rl/strands-sglang issue #31",),
)
class RefusalIsPlainText(Fault):
    """A refusal is a line of text."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        return status, b"Bad Request" if status == 400 else answer


@fault(
    "refusal-without-words",
    "X15",
    upstream=("sgl-project/sglang PR #23751",),
)
class RefusalWithoutWords(Fault):
    """A refusal does not say why."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if status == 400:
            answer.get("error", answer)["message"] = ""
        return status, answer


@fault(
    "refusal-does-not-name-the-field",
    "X15",
    upstream=("sgl-project/sglang PR #23751",),
    shows_in=STREAMED,
)
class RefusalDoesNotNameTheField(Fault):
    """A refusal says that something is not supported, and not what."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if status == 400:
            answer.get("error", answer)["message"] = "this is not supported"
        return status, answer


@fault(
    "refused-inside-the-stream",
    "X15",
    upstream=("vllm-project/vllm PR #40986", "sgl-project/sglang PR #19357"),
    shows_in=STREAMED,
)
class RefusedInsideTheStream(Fault):
    """Status 200 comes first, and the refusal in an event."""

    refused = False

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        fields = ("return_prompt_token_ids", "return_token_ids", "return_meta_info")
        self.refused = bool(body.get("stream") and "messages" in body and any(map(body.get, fields)))
        return {name: value for name, value in body.items() if not (self.refused and name in fields)}

    def frame(self, frame: bytes) -> Iterable[bytes]:
        if not self.refused or b"[DONE]" in frame:
            return [frame]
        error = {"object": "error", "message": "not with stream", "type": "BadRequest", "code": 400}
        first, self.frame = orjson.dumps({"error": error}), _only_done  # type: ignore[method-assign]  # said once
        return [b"data: " + first + b"\n\n"]


def _only_done(frame: bytes) -> Iterable[bytes]:
    return [frame] if b"[DONE]" in frame else []


@fault(
    "refusal-harms-the-next",
    "X24",
    upstream=("vllm-project/vllm issue #54195", "sgl-project/sglang PR #8383"),
    shows_in=(WHOLE,),
)
class RefusalHarmsTheNext(Fault):
    """What a refused request left behind breaks the next one."""

    left_behind: ClassVar[set[str]] = set()
    """Paths where the last request was refused."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        harmed = self.path in self.left_behind
        (self.left_behind.add if status == 400 else self.left_behind.discard)(self.path)
        if harmed and status == 200:
            return 500, {"object": "error", "message": "index out of range", "code": 500}
        return status, answer


@fault(
    "unknown-path-answered",
    "X15",
    upstream=("authelia/authelia PR #1806",),
)
class UnknownPathAnswered(Fault):
    """A path that is not there is answered with 200, as the page that takes all paths does."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        return (200, {}) if status == 404 else (status, answer)
