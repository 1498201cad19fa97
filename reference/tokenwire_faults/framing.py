"""Faults in framing: events, media types, and how a stream ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from tokenwire_faults.answer_shape import choices_of, finish_of, meta_infos
from tokenwire_faults.catalogue import STREAMED, WHOLE, fault
from tokenwire_faults.fault import Fault, Json

DONE = b"data: [DONE]\n\n"


@fault(
    "done-missing",
    "X15",
    upstream=("mlc-ai/mlc-llm issue #1300",),
    shows_in=STREAMED,
)
class DoneMissing(Fault):
    """A stream ends without [DONE]."""

    def frame(self, frame: bytes) -> Iterable[bytes]:
        return [] if frame == DONE else [frame]


@fault("stream-held-back", "X15", upstream=("BerriAI/litellm issue #26102",), shows_in=STREAMED)
class StreamHeldBack(Fault):
    """A proxy reads a stream to its end before it passes it on."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def frame(self, frame: bytes) -> Iterable[bytes]:
        self._held.append(frame)
        return self._held if frame == DONE else []


@fault("another-model-named", "X25")
class AnotherModelNamed(Fault):
    """Answers name a model that was not asked for, and that the server does not list."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if isinstance(answer, dict) and "model" in answer:
            answer["model"] = "another-model"
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "done-twice",
    "X15",
    upstream=("Routstr/routstr-core PR #543",),
    shows_in=STREAMED,
)
class DoneTwice(Fault):
    """A proxy adds its own [DONE] to the server's."""

    def frame(self, frame: bytes) -> Iterable[bytes]:
        return [frame, frame] if frame == DONE else [frame]


@fault(
    "data-after-done",
    "X15",
    upstream=("BerriAI/litellm issue #17136",),
    shows_in=STREAMED,
)
class DataAfterDone(Fault):
    """The last event comes after [DONE]."""

    last = b""

    def frame(self, frame: bytes) -> Iterable[bytes]:
        written = [frame, self.last] if frame == DONE else [frame]
        self.last = frame
        return written


@fault(
    "stream-cut-off",
    "X15",
    upstream=("BerriAI/litellm PR #39748", "sgl-project/sglang issue #29256", "mozilla-ai/any-llm PR #847"),
    shows_in=STREAMED,
)
class StreamCutOff(Fault):
    """The generator of a stream fails after three events, and the connection is closed."""

    seen = 0

    def frame(self, frame: bytes) -> Iterable[bytes]:
        self.seen += 1
        if self.seen > 3:
            raise ConnectionAbortedError("cut off by the fault stream-cut-off")
        return [frame]


@fault(
    "stream-ends-as-if-done",
    "X15",
    upstream=("kekzl/imp issue #1553", "vllm-project/vllm PR #47933"),
    shows_in=STREAMED,
)
class StreamEndsAsIfDone(Fault):
    """After a failure the stream just ends with [DONE]: no finish, no error."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [] if finish_of(event) else [event]


@fault(
    "last-event-unterminated",
    "X16",
    upstream=("graniet/llm PR #90", "vllm-project/aibrix PR #2653"),
    shows_in=STREAMED,
)
class LastEventUnterminated(Fault):
    """The blank line after the last event is missing."""

    def frame(self, frame: bytes) -> Iterable[bytes]:
        return [frame.rstrip(b"\n")] if frame == DONE else [frame]


@fault(
    "event-over-several-lines",
    "X16",
    upstream=("modelcontextprotocol/typescript-sdk PR #1925",),
    shows_in=STREAMED,
)
class EventOverSeveralLines(Fault):
    """An answer with a line break in it is cut there: only its first line is data."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.breaks = finish_of(event) is not None
        return [event]

    breaks = False

    def frame(self, frame: bytes) -> Iterable[bytes]:
        return [frame.replace(b",", b",\n", 1) if self.breaks else frame]


@fault(
    "two-objects-in-an-event",
    "X16",
    upstream=("vllm-project/aibrix PR #2653",),
    shows_in=STREAMED,
)
class TwoObjectsInAnEvent(Fault):
    """Two JSON objects are written into one event, the third."""

    seen = 0

    def frame(self, frame: bytes) -> Iterable[bytes]:
        self.seen += 1
        return [frame.rstrip(b"\n") + b"{}\n\n" if self.seen == 3 and frame != DONE else frame]


@fault(
    "events-named",
    "X16",
    upstream=("vllm-project/vllm issue #55324",),
    shows_in=STREAMED,
)
class EventsNamed(Fault):
    """Events have a name, so that many clients do not see them."""

    def frame(self, frame: bytes) -> Iterable[bytes]:
        return [b"event: message_delta\n" + frame]


@fault(
    "bytes-of-broken-characters",
    "X16",
    upstream=("ggml-org/llama.cpp issue #4036", "diegosouzapw/OmniRoute PR #11921"),
    shows_in=STREAMED,
)
class BytesOfBrokenCharacters(Fault):
    """Half characters are written as the bytes that they are."""

    def frame(self, frame: bytes) -> Iterable[bytes]:
        return [
            frame.replace(b'"text":"', b'"text":"\xe4\xb8').replace(b'"content":"', b'"content":"\xe4\xb8')
        ]


@fault(
    "media-type-plain",
    "X16",
    upstream=("vllm-project/vllm PR #51172",),
)
class MediaTypePlain(Fault):
    """Everything is text/plain."""

    def media_type(self, given: str) -> str:
        return "text/plain; charset=utf-8"


@fault(
    "null-keys-excluded",
    "X16",
    upstream=("vllm-project/vllm issue #55324", "agentgateway/agentgateway PR #3455"),
    shows_in=STREAMED,
)
class NullKeysExcluded(Fault):
    """Required keys are left out where their value is null."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for holder in (*choices_of(event), *meta_infos(event)):
            for name in [name for name, value in holder.items() if value is None]:
                del holder[name]
        return [event]


@fault(
    "key-missing-in-the-middle",
    "X16",
    upstream=("vllm-project/vllm issue #55324", "sgl-project/sglang PR #19514"),
    shows_in=STREAMED,
)
class KeyMissingInTheMiddle(Fault):
    """Between the first event and the last, a count that is 0 is left out."""

    begun = False

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for info in meta_infos(event) if self.begun and not finish_of(event) else ():
            for name in [name for name, value in info.items() if value == 0 and value is not False]:
                del info[name]
        self.begun = True
        return [event]


@fault(
    "answer-without-meta-info",
    "X25",
    upstream=("NVIDIA-NeMo/ProRL-Agent-Server issue #52", "sgl-project/sglang PR #10764"),
    shows_in=(WHOLE,),
)
class AnswerWithoutMetaInfo(Fault):
    """A router writes answers anew with the fields it knows: text and ids."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for choice in choices_of(answer):
            choice.pop("meta_info", None)
        return status, answer


@fault(
    "chat-role-missing",
    "X16",
    upstream=("agentgateway/agentgateway PR #3455",),
    shows_in=STREAMED,
)
class ChatRoleMissing(Fault):
    """No chunk of a chat stream has a role."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for choice in choices_of(event):
            choice.get("delta", {}).pop("role", None)
        return [event]


@fault(
    "chat-role-changes",
    "X16",
    upstream=("madroidmaq/mlx-omni-server PR #56",),
    shows_in=STREAMED,
)
class ChatRoleChanges(Fault):
    """Later chunks of a chat stream have another role."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for choice in choices_of(event):
            if choice.get("delta", {}).get("content"):
                choice["delta"]["role"] = "tool"
        return [event]


@fault(
    "chat-logprobs-in-the-legacy-shape",
    "X16",
    upstream=("vllm-project/vllm issue #3179", "kekzl/imp issue #1589"),
)
class ChatLogprobsInTheLegacyShape(Fault):
    """Chat has the logprobs of the completions endpoint: parallel lists instead of content."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for choice in choices_of(answer):
            if choice.get("logprobs"):
                content = choice["logprobs"]["content"]
                choice["logprobs"] = {
                    "tokens": [one["token"] for one in content],
                    "token_logprobs": [one["logprob"] for one in content],
                }
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


class _FailsInTheStream(Fault):
    """Writes an error event as the third of a stream."""

    error: ClassVar[Json] = {"message": "the worker died", "type": "server_error", "code": 502}
    seen = 0

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.seen += 1
        return [{"error": self.error}] if self.seen == 3 else [event] if self.seen < 3 else []


@fault(
    "stream-fails",
    "X15",
    upstream=("vllm-project/vllm PR #47933",),
    shows_in=STREAMED,
    unseen="a stream may fail: it says so as it ought to, and shows the requirements on errors that hold",
)
class StreamFails(_FailsInTheStream):
    """A stream ends with an error event as its third: words, a code, and nothing behind it."""

    error: ClassVar[Json] = {"message": "no room is left; ask again later", "type": "busy", "code": 503}
    finished = False

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.finished = self.finished or (self.seen < 3 and finish_of(event) is not None)
        return [event] if self.finished else super().event(event)


@fault(
    "stream-error-says-nothing",
    "X15",
    upstream=("mozilla-ai/any-llm PR #847",),
    shows_in=STREAMED,
)
class StreamErrorSaysNothing(_FailsInTheStream):
    """A stream fails with an error event that has neither words nor a code."""

    error: ClassVar[Json] = {"type": "server_error"}


@fault(
    "stream-goes-on-after-an-error",
    "X15",
    upstream=("vllm-project/vllm PR #47933",),
    shows_in=STREAMED,
)
class StreamGoesOnAfterAnError(_FailsInTheStream):
    """An event cannot be written, an error takes its place, and the stream goes on as if nothing were."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.seen += 1
        return [{"error": self.error}] if self.seen == 3 else [event]


@fault(
    "stream-error-after-the-finish",
    "X15",
    upstream=("kekzl/imp issue #1553",),
    shows_in=STREAMED,
)
class StreamErrorAfterTheFinish(_FailsInTheStream):
    """A stream that failed is finished like any other, with an error behind it."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [event, {"error": self.error}] if finish_of(event) else [event]
