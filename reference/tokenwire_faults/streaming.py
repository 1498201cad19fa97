"""Faults in the output streamer: when a request emits, and what stands in its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tokenwire_faults.answer_shape import choices_of, finish_of, meta_infos, without_news
from tokenwire_faults.catalogue import INCREMENTAL, STREAMED, fault
from tokenwire_faults.fault import Fault, Json
from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.request_manager import Emission, Reader


@fault(
    "interval-ignored",
    "X02",
    upstream=("sgl-project/sglang PR #25634",),
    shows_in=STREAMED,
)
class IntervalIgnored(Fault):
    """A streaming request emits at every step, whatever stream_interval says."""

    def due(self, request: Request, sent: int, due: bool) -> bool:
        return due or bool(request.stream and len(request.output_ids) > sent)


@fault(
    "interval-of-the-server-wins",
    "X07",
    upstream=("sgl-project/sglang PR #25634",),
    shows_in=STREAMED,
)
class IntervalOfTheServerWins(Fault):
    """The request's own stream_interval is not looked at."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        (body.get("sampling_params") or {}).pop("stream_interval", None)
        return body


@fault(
    "first-token-withheld",
    "X02",
    upstream=("sgl-project/sglang PR #25634",),
    shows_in=STREAMED,
)
class FirstTokenWithheld(Fault):
    """The first token is not sent at once: it waits until stream_interval tokens are there."""

    def due(self, request: Request, sent: int, due: bool) -> bool:
        return due and (sent > 0 or len(request.output_ids) >= (request.sampling.stream_interval or 1))


@fault(
    "first-event-empty",
    "X28",
    upstream=("sgl-project/sglang PR #25634", "vllm-project/vllm issue #10126"),
    shows_in=STREAMED,
)
class FirstEventEmpty(Fault):
    """Each piece of a chunked prefill sends an event, before there is a token."""

    begun = False

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        if self.begun or "meta_info" not in event:
            return [event]
        self.begun = True
        idle = without_news(event)
        idle["meta_info"] |= {"completion_tokens": 0, "finish_reason": None}
        return [idle, event]


@fault(
    "event-dropped",
    "X02",
    upstream=("vllm-project/vllm issue #30099", "NVIDIA/TensorRT-LLM issue #10824"),
    shows_in=(INCREMENTAL,),
)
class EventDropped(Fault):
    """The second event of a stream is lost, and the stream goes on."""

    seen = 0

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.seen += 1
        return [] if self.seen == 2 and not finish_of(event) else [event]


@fault(
    "event-repeated",
    "X03",
    upstream=("triton-inference-server/tensorrtllm_backend issue #167",),
    shows_in=(INCREMENTAL,),
)
class EventRepeated(Fault):
    """An event is sent twice."""

    seen = 0

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.seen += 1
        return [event] * (2 if self.seen == 2 and not finish_of(event) else 1)


@fault(
    "last-token-twice",
    "X03",
    upstream=("triton-inference-server/tensorrtllm_backend issue #167",),
    shows_in=STREAMED,
)
class LastTokenTwice(Fault):
    """The last id of a stream is sent once more with the finish."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if emission.finish is None or not self.request.get("stream"):
            return emission
        return replace(emission, output_ids=[*emission.output_ids, *emission.output_ids[-1:]])


@fault(
    "first-text-lost",
    "X02",
    upstream=("vllm-project/vllm issue #30866",),
    shows_in=(INCREMENTAL,),
)
class FirstTextLost(Fault):
    """The first piece of text of a choice is not sent; its ids are."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if not emission.text or reader.request.rid in self._begun or not self.request.get("stream"):
            return emission
        self._begun.add(reader.request.rid)
        return replace(emission, text="")


@fault(
    "text-of-silent-steps-lost",
    "X02",
    upstream=("raullenchai/Rapid-MLX issue #209",),
    shows_in=(INCREMENTAL,),
)
class TextOfSilentStepsLost(Fault):
    """Steps that do not send discard their text: an event of several tokens has the last one's."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        several = len(emission.output_ids) > 1 and self.request.get("stream")
        return replace(emission, text=emission.text[-1:]) if several else emission


@fault(
    "other-mode-advertised",
    "X04",
    upstream=("THUDM/slime PR #2272",),
    shows_in=STREAMED,
)
class OtherModeAdvertised(Fault):
    """/server_info names the other delivery mode."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if "server_info" in self.path:
            answer["incremental_streaming_output"] = not answer["incremental_streaming_output"]
        return status, answer


@fault(
    "prompt-ids-in-output",
    "X02",
    upstream=("sgl-project/sglang issue #17240", "sgl-project/sglang issue #10896"),
)
class PromptIdsInOutput(Fault):
    """output_ids begin with the last ids of the prompt, which the detokenizer keeps for its own use."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if reader.taken_ids and len(emission.output_ids) < emission.completion_tokens:
            return emission
        return replace(emission, output_ids=[*reader.request.prompt_token_ids[-5:], *emission.output_ids])


@fault(
    "retraction-restarts-the-ids",
    "X22",
    upstream=("sgl-project/sglang issue #39645", "vllm-project/vllm issue #16832"),
    shows_in=STREAMED,
)
class RetractionRestartsTheIds(Fault):
    """A retraction throws the ids away and keeps the cursors: the client gets A[:4] + B[4:]."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if not self.request.get("stream"):
            return emission
        first = emission.completion_tokens - len(emission.output_ids)
        record, places = emission.record, range(first, emission.completion_tokens)
        ids = [record.output_ids[i if i < 4 else i - 4] for i in places]
        return replace(emission, output_ids=ids)


@fault(
    "sampling-differs-in-streams",
    "X28",
    upstream=("ikawrakow/ik_llama.cpp issue #780", "Blaizzy/mlx-vlm PR #1215"),
    shows_in=STREAMED,
)
class SamplingDiffersInStreams(Fault):
    """Streams take another path to the engine, and lose or gain a sampling parameter on the way."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("stream") and isinstance(params := body.get("sampling_params"), dict):
            params["logit_bias"] = {"5": 100}
        return body


@fault(
    "ids-as-floats",
    "X16",
    upstream=("vllm-project/vllm PR #27561",),
)
class IdsAsFloats(Fault):
    """Token ids went through a float tensor: 12.0."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for choice in choices_of(answer):
            if "output_ids" in choice:
                choice["output_ids"] = [float(i) for i in choice["output_ids"]]
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "id-out-of-range",
    "X23",
    upstream=("NVIDIA-NeMo/RL issue #237",),
)
class IdOutOfRange(Fault):
    """An id is sampled that no vocabulary has."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        return replace(emission, output_ids=[i if i % 5 else 2**31 + i for i in emission.output_ids])


@fault(
    "cost-grows-with-position",
    "X26",
    upstream=("ROCm/ATOM PR #2020", "sgl-project/sglang PR #17005"),
    shows_in=(INCREMENTAL,),
)
class CostGrowsWithPosition(Fault):
    """Every event costs as much as all before it together, here in comments on the wire."""

    seen = 0

    def frame(self, frame: bytes) -> Iterable[bytes]:
        self.seen += 1
        return [b": " + b"." * 20 * self.seen + b"\n", frame]


@fault(
    "customized-info-missing-from-streams",
    "X07",
    upstream=("sgl-project/sglang PR #27205",),
    shows_in=STREAMED,
)
class CustomizedInfoMissingFromStreams(Fault):
    """Only whole answers have customized_info."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for info in meta_infos(event):
            for name in [name for name in info if name.startswith("mirror_")]:
                del info[name]
        return [event]
