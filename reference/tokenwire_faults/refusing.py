"""Faults in refusals: bad requests that run, and good ones that suffer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import Any, ClassVar

import orjson

from tokenwire_faults.catalogue import STREAMED, WHOLE, fault
from tokenwire_faults.fault import Fault, Json

_KILLED = 137
"""The exit status of a process that was killed."""


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
    "empty-ids-in-a-batch-run",
    "X24",
    upstream=("mmcdermott/MEDS_EIC_AR issue #176",),
    shows_in=(WHOLE,),
)
class EmptyIdsInABatchRun(Fault):
    """Only a prompt by itself is looked at: an empty one among others is given a token and run."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        for name in ("input_ids", "prompt"):
            ids = body.get(name)
            if isinstance(ids, list) and any(isinstance(one, list) and one for one in ids):
                body[name] = [one or [0] for one in ids]
        return body


@fault(
    "refusal-is-a-server-error",
    "X24",
    upstream=("sgl-project/sglang issue #7727", "NVIDIA/TensorRT-LLM PR #6845"),
)
class RefusalIsAServerError(Fault):
    """A bad request fails with 500: it was not validated before it was used."""

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
    "refusals-of-two-shapes",
    "X15",
    upstream=("tenstorrent/tt-inference-server issue #2750",),
    shows_in=(WHOLE,),
)
class RefusalsOfTwoShapes(Fault):
    """What is wrong with a prompt is said by another layer than what is wrong with its budget."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if status == 400 and "max_" in str(answer):
            return status, {"error": answer.get("error", answer)["message"]}
        return status, answer


@fault("refusal-shows-a-traceback", "X15", upstream=("vllm-project/vllm PR #46415",), shows_in=(WHOLE,))
class RefusalShowsATraceback(Fault):
    """The words of a refusal end with the line of the server's code that refused."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if status == 400:
            answer.get("error", answer)["message"] += '\n\n  File "/opt/server/server/http.py", line 928'
        return status, answer


@fault("refused-stream-has-a-token", "X15", upstream=("sgl-project/sglang PR #6803",), shows_in=STREAMED)
class RefusedStreamHasAToken(Fault):
    """A stream of `/generate` that is refused is aborted behind a token that was never sampled."""

    def media_type(self, given: str) -> str:
        refused = self.request.get("stream") and self.path == "/generate" and "json" in given
        return "text/event-stream; charset=utf-8" if refused else given

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if not (self.request.get("stream") and self.path == "/generate" and status == 400):
            return status, answer
        words = answer["error"]["message"]
        finish = {"type": "abort", "message": words, "status_code": 400, "err_type": "BadRequestError"}
        counts = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
        info = {"id": "refused", "finish_reason": finish, **counts, "weight_version": "default"}
        event = {"text": " R", "output_ids": [75], "meta_info": info}
        return 200, b"data: " + orjson.dumps(event) + b"\n\ndata: [DONE]\n\n"


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


@fault(
    "refusal-changes-the-next",
    "X24",
    upstream=("vllm-project/vllm issue #54195",),
    shows_in=(WHOLE,),
)
class RefusalChangesTheNext(Fault):
    """What a refused request left behind is added to the logits of the next one like the one before it."""

    answered_before: ClassVar[dict[str, Json]] = {}
    """Path to the last body that was answered there."""
    left_behind: ClassVar[set[str]] = set()

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.path not in self.left_behind or self.answered_before.get(self.path) != body:
            return body
        params = body.get("sampling_params")
        if params is None:
            return {**body, "logit_bias": {"5": 100}}
        return {**body, "sampling_params": {**params, "logit_bias": {"5": 100}}}

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if status == 400:
            self.left_behind.add(self.path)
        elif status == 200 and self.answered_before.get(self.path) != self.request:
            self.answered_before[self.path] = self.request
            self.left_behind.discard(self.path)
        return status, answer


def _parameters(body: dict[str, Any]) -> dict[str, Any]:
    """Where a body has its sampling parameters: in an object of their own, or beside everything else."""
    params = body.get("sampling_params")
    return params if isinstance(params, dict) else body


@fault(
    "unknown-prompt-ids-clipped",
    "X24",
    upstream=("sgl-project/sglang PR #8383", "vllm-project/vllm PR #51795"),
    shows_in=(WHOLE,),
)
class UnknownPromptIdsClipped(Fault):
    """Ids outside the vocabulary are brought into it, and run."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        for name in ("input_ids", "prompt", "token_ids"):
            ids = body.get(name)
            if isinstance(ids, list) and all(type(one) is int for one in ids):
                body[name] = [one % 200 if one < 0 or one > 1000 else one for one in ids]
        return body


_TINY_VOCABULARY = 736
"""Of `builtin:tiny`, the model that faults are shown with."""


@fault("one-id-too-many", "X24", upstream=("sgl-project/sglang PR #8383",), shows_in=(WHOLE,))
class OneIdTooMany(Fault):
    """The id that equals the size of the vocabulary is taken for one, and run as some other."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        for name in ("input_ids", "prompt", "token_ids"):
            ids = body.get(name)
            if isinstance(ids, list):
                body[name] = [0 if one == _TINY_VOCABULARY else one for one in ids]
        return body


def _prompt_ids(body: dict[str, Any]) -> list[int]:
    """The ids of a prompt, of all prompts of a batch; none where it is no list of integers."""
    given: Json = next((body[name] for name in ("input_ids", "prompt", "token_ids") if name in body), [])
    rows = given if isinstance(given, list) else []
    flat = [one for row in rows for one in (row if isinstance(row, list) else [row])]
    return flat if all(type(one) is int for one in flat) else []


@fault(
    "dies-of-a-negative-id",
    "X24",
    upstream=("sgl-project/sglang PR #8383",),
    shows_in=(WHOLE,),
    ends_the_server=True,
)
class DiesOfANegativeId(Fault):
    """An id below 0 reads before the embedding's first row, and the process ends."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        if any(one < 0 for one in _prompt_ids(body)):
            os._exit(_KILLED)
        return body


@fault(
    "dies-of-an-unknown-id",
    "X24",
    upstream=("vllm-project/vllm issue #54195",),
    shows_in=(WHOLE,),
    ends_the_server=True,
)
class DiesOfAnUnknownId(Fault):
    """An id beyond every vocabulary reads behind the embedding's last row, and the process ends."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        if any(one >= 2**31 for one in _prompt_ids(body)):
            os._exit(_KILLED)
        return body


@fault(
    "hangs-of-a-negative-id",
    "X24",
    upstream=("sgl-project/sglang PR #8383",),
    shows_in=(WHOLE,),
    ends_the_server=True,
)
class HangsOfANegativeId(Fault):
    """An id below 0 ends the scheduler, and the process stands there and answers nothing any more."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        if any(one < 0 for one in _prompt_ids(body)):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing here would look at it any more
            threading.Event().wait()
        return body


@fault(
    "unknown-parameter-ids-dropped",
    "X24",
    upstream=("vllm-project/vllm issue #54195", "vllm-project/vllm PR #16529"),
    shows_in=(WHOLE,),
)
class UnknownParameterIdsDropped(Fault):
    """Stop ids, biased ids and chosen ids that are none are left out in silence."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        params = _parameters(body)
        if bias := params.get("logit_bias"):
            params["logit_bias"] = {key: value for key, value in bias.items() if 0 <= int(key) < 1000}
        for holder, name in ((params, "stop_token_ids"), (body, "token_ids_logprob")):
            if isinstance(holder.get(name), list):
                holder[name] = [one for one in holder[name] if 0 <= one < 1000]
        return body


_INTEGERS = ("max_new_tokens", "max_tokens", "max_completion_tokens", "n", "stream_interval", "seed")


@fault(
    "wrong-types-ignored",
    "X24",
    upstream=("vllm-project/vllm PR #9634",),
    shows_in=(WHOLE,),
)
class WrongTypesIgnored(Fault):
    """A number that is no integer is as good as none: the default is taken."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        params = _parameters(body)
        for name in _INTEGERS:
            if type(params.get(name, 0)) is not int:
                del params[name]
        return body


@fault(
    "impossible-values-clipped",
    "X24",
    upstream=("sgl-project/sglang issue #7727",),
    shows_in=(WHOLE,),
)
class ImpossibleValuesClipped(Fault):
    """A number that is too small becomes the smallest that is not."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        params = _parameters(body)
        for name, least in dict.fromkeys(_INTEGERS, 1).items() | {("temperature", 0), ("min_new_tokens", 0)}:
            if type(params.get(name)) in (int, float):
                params[name] = max(params[name], least)
        return body


@fault(
    "unreadable-bodies-crash",
    "X24",
    upstream=("NVIDIA/TensorRT-LLM PR #6845",),
    shows_in=(WHOLE,),
)
class UnreadableBodiesCrash(Fault):
    """A body that is no JSON object is an accident: status 500 and a line of text."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        return (500, b"Internal Server Error") if status == 400 and not self.request else (status, answer)


@fault(
    "missing-prompt-invented",
    "X24",
    upstream=("mmcdermott/MEDS_EIC_AR issue #176",),
    shows_in=(WHOLE,),
)
class MissingPromptInvented(Fault):
    """Where there is no prompt, there is one token."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.path == "/generate" and not body.keys() & {"input_ids", "text"}:
            body["input_ids"] = [1]
        return body


@fault(
    "misfitting-lists-stretched",
    "X19",
    upstream=("sgl-project/sglang PR #23751",),
    shows_in=(WHOLE,),
)
class MisfittingListsStretched(Fault):
    """A list with too few entries for its batch is repeated, one with too many cut."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        prompts = body.get("input_ids")
        if isinstance(prompts, list) and prompts and all(isinstance(one, list) for one in prompts):
            for name in ("sampling_params", "rid"):
                if isinstance(body.get(name), list):
                    body[name] = (body[name] * len(prompts))[: len(prompts)]
        return body


@fault(
    "length-rule-differs-in-streams",
    "X18",
    upstream=("sgl-project/sglang PR #2876",),
    shows_in=STREAMED,
)
class LengthRuleDiffersInStreams(Fault):
    """A stream is refused whose prompt leaves room for less than four tokens; a whole answer is not.

    Contexts are taken to be multiples of 256.
    """

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, params = body.get("input_ids"), _parameters(body)
        if body.get("stream") and isinstance(ids, list) and len(ids) % 256 > 252:
            for name in {"max_new_tokens", "max_tokens", "max_completion_tokens"} & params.keys():
                params[name] = 10**6
        return body


@fault(
    "ids-need-a-tokenizer",
    "X24",
    upstream=("sgl-project/sglang issue #7727",),
    shows_in=(WHOLE,),
    server=("--skip-tokenizer-init",),
)
class IdsNeedATokenizer(Fault):
    """Without a tokenizer, logprobs cannot be written: their tokens have no text."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if self.tokenizer is None and self.request.get("return_logprob") and status == 200:
            return 500, {
                "object": "error",
                "message": "'NoneType' object has no attribute 'decode'",
                "code": 500,
            }
        return status, answer


@fault(
    "text-runs-without-a-tokenizer",
    "X24",
    upstream=("sgl-project/sglang PR #27882",),
    shows_in=(WHOLE,),
    server=("--skip-tokenizer-init",),
)
class TextRunsWithoutATokenizer(Fault):
    """Without a tokenizer, stop strings have no effect, and are not refused."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        for name in ("stop", "stop_regex"):
            _parameters(body).pop(name, None)
        return body


@fault(
    "stops-with-logprobs-refused",
    "X15",
    upstream=("NVIDIA/TensorRT-LLM PR #18190",),
    shows_in=(WHOLE,),
)
class StopsWithLogprobsRefused(Fault):
    """Logprobs are not cut where a stop string cut the ids, and the request is refused for it."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        request = self.request
        stops = (request.get("sampling_params") or {}).get("stop") or request.get("stop")
        if status != 200 or not stops or not (request.get("return_logprob") or request.get("logprobs")):
            return status, answer
        message = "stop: token_ids and logprobs have different lengths"
        return 400, {"object": "error", "message": message, "type": "BadRequest", "code": 400}
