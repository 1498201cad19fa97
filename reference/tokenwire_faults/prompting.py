"""Faults in token-in-token-out: the ids that go in, and the ids that are said to have gone in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tokenwire_faults.answer_shape import choices_of, finish_of
from tokenwire_faults.catalogue import STREAMED, WHOLE, fault
from tokenwire_faults.fault import Fault, Json
from tokenwire_reference.doors.request_manager import Emission, Reader

PROMPT_IDS = "prompt_token_ids"
BOS = 1


def _each_prompt(body: dict[str, Any], change: Callable[[list[int]], list[int]]) -> dict[str, Any]:
    """A body with each of its lists of prompt ids changed; malformed ones are left to be refused."""
    ids = body.get("input_ids")
    if not isinstance(ids, list) or not ids:
        return body
    if all(type(one) is int for one in ids):
        return {**body, "input_ids": change(ids)}
    if all(isinstance(row, list) and row and all(type(one) is int for one in row) for row in ids):
        return {**body, "input_ids": [change(row) for row in ids]}
    return body


class _ChangesChoices(Fault):
    """Changes each choice of answers and events."""

    def change(self, choice: dict[str, Any], position: int) -> None:
        """Change one choice; `position` is its place in the answer, or its index in a stream."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for position, choice in enumerate(choices_of(answer)):
            self.change(choice, choice.get("index", position))
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


def _with_prompt(emission: Emission, token_ids: Sequence[int]) -> Emission:
    """An emission that says its prompt was another."""
    return replace(emission, record=replace(emission.record, prompt_token_ids=tuple(token_ids)))


@fault(
    "prompt-ids-dropped",
    "X25",
    upstream=("NVIDIA-NeMo/ProRL-Agent-Server issue #52", "sgl-project/sglang PR #23751"),
)
class PromptIdsDropped(_ChangesChoices):
    """A router strips prompt_token_ids, which its schema does not know."""

    def change(self, choice: dict[str, Any], position: int) -> None:
        choice.pop(PROMPT_IDS, None)


@fault(
    "fields-beside-the-choices-dropped",
    "X25",
    upstream=("sgl-project/sglang PR #34488",),
)
class FieldsBesideTheChoicesDropped(Fault):
    """A router takes the flags that ask for sglext, and strips it from answers and streams."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        if isinstance(answer, dict):
            answer.pop("sglext", None)
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [] if event.pop("sglext", None) is not None and not event["choices"] else [event]


@fault(
    "prompt-ids-null",
    "X07",
    upstream=("sgl-project/sglang PR #23751", "vllm-project/vllm PR #27561"),
)
class PromptIdsNull(_ChangesChoices):
    """Answers that were not asked for prompt_token_ids have the key, with null."""

    def change(self, choice: dict[str, Any], position: int) -> None:
        choice.setdefault(PROMPT_IDS, None)


@fault(
    "prompt-ids-unasked",
    "X07",
    upstream=("sgl-project/sglang PR #23751",),
)
class PromptIdsUnasked(Fault):
    """Every answer carries the prompt's ids, asked for or not."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return (
            body if body.get("stream") and "messages" in body else {**body, "return_prompt_token_ids": True}
        )


@fault(
    "prompt-ids-for-the-first-choice-only",
    "X19",
    upstream=("sgl-project/sglang PR #23751",),
)
class PromptIdsForTheFirstChoiceOnly(_ChangesChoices):
    """Of several choices only the first has prompt_token_ids."""

    def change(self, choice: dict[str, Any], position: int) -> None:
        if position:
            choice.pop(PROMPT_IDS, None)


@fault(
    "prompt-ids-of-the-first-prompt",
    "X19",
    upstream=("sgl-project/sglang PR #23751",),
)
class PromptIdsOfTheFirstPrompt(_ChangesChoices):
    """All choices of a batch have the ids of the first prompt."""

    first: list[int] | None = None

    def change(self, choice: dict[str, Any], position: int) -> None:
        if choice.get(PROMPT_IDS):
            self.first = self.first or choice[PROMPT_IDS]
            choice[PROMPT_IDS] = self.first


@fault(
    "prompt-ids-grow",
    "X22",
    upstream=("vllm-project/vllm issue #25780", "sgl-project/sglang issue #17240"),
    shows_in=STREAMED,
)
class PromptIdsGrow(Fault):
    """prompt_token_ids is the list that the engine appends to: later events have output ids in it."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if not self.request.get("stream"):
            return emission
        grown = [*reader.request.prompt_token_ids, *reader.request.output_ids[: reader.taken_ids]]
        return _with_prompt(emission, grown)


@fault(
    "prompt-ids-without-the-last",
    "X18",
    upstream=("vllm-project/vllm issue #2012",),
)
class PromptIdsWithoutTheLast(_ChangesChoices):
    """The ids that are told lack the last one that ran, such as the newline after a template's role."""

    def change(self, choice: dict[str, Any], position: int) -> None:
        if choice.get(PROMPT_IDS):
            choice[PROMPT_IDS] = choice[PROMPT_IDS][:-1]


@fault(
    "extra-bos",
    "X18",
    upstream=("vllm-project/vllm PR #16976", "MakazhanAlpamys/Soup issue #890"),
)
class ExtraBos(Fault):
    """A beginning-of-sequence token is put before ids that were to be run as they are."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return _each_prompt(body, lambda ids: [BOS, *ids])


@fault(
    "prompt-retokenised",
    "X18",
    upstream=("sgl-project/sglang PR #26555", "rllm-org/rllm issue #816", "modelscope/ms-swift PR #10012"),
)
class PromptRetokenised(Fault):
    """The ids are decoded, and the text is tokenized again: encode(decode(ids))."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        if (tokenizer := self.tokenizer) is None:
            return body
        return _each_prompt(
            body, lambda ids: tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False)
        )


@fault(
    "images-put-in-again",
    "X18",
    upstream=("sgl-project/sglang PR #26555",),
    server=("--model=builtin:tiny-mm",),
)
class ImagesPutInAgain(Fault):
    """Ids beside images are decoded, and the images are put into the text once more."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body.get("input_ids")
        if self.tokenizer is None or not ids or not body.get("image_data"):
            return body
        return {**body, "input_ids": None, "text": self.tokenizer.decode(ids)}


@fault(
    "prompt-truncated",
    "X18",
    upstream=("mmcdermott/MEDS_EIC_AR PR #172",),
)
class PromptTruncated(Fault):
    """A long prompt is cut at its end without a word."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return _each_prompt(body, lambda ids: ids[:10])


@fault(
    "null-content-spelled-out",
    "X18",
    upstream=("sgl-project/sglang PR #23751",),
)
class NullContentSpelledOut(Fault):
    """A message whose content is null reaches the template so, which writes it as a word."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        messages = body.get("messages")
        if not isinstance(messages, list):
            return body
        spelled = [{**one, "content": "None"} if one.get("content") is None else one for one in messages]
        return {**body, "messages": spelled}


@fault(
    "text-beats-ids",
    "X18",
    upstream=("sgl-project/sglang PR #23751",),
)
class TextBeatsIds(Fault):
    """Where a request has both, its text is run and its input_ids are dropped."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "input_ids": None} if body.get("text") and body.get("input_ids") else body


@fault(
    "messages-beat-ids",
    "X18",
    upstream=("sgl-project/sglang PR #23751", "NVIDIA-NeMo/Gym PR #1787"),
)
class MessagesBeatIds(Fault):
    """The chat endpoint renders its messages, and input_ids are not looked at."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "input_ids": None} if body.get("messages") and body.get("input_ids") else body


@fault("chat-ids-ignored", "X18", upstream=("NVIDIA-NeMo/Gym PR #1787",))
class ChatIdsIgnored(Fault):
    """The chat endpoint knows no token ids: input_ids and the flags that ask for ids are not looked at."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        unknown = ("input_ids", "return_prompt_token_ids", "return_token_ids", "return_meta_info")
        return {name: value for name, value in body.items() if "messages" not in body or name not in unknown}


@fault(
    "output-retokenised",
    "X18",
    upstream=("eval-protocol/python-sdk PR #457", "NVIDIA-NeMo/Gym PR #1787"),
    shows_in=(WHOLE,),
)
class OutputRetokenised(Fault):
    """output_ids are made from the text, not kept from the sampler."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if self.tokenizer is None or self.request.get("stream"):
            return emission
        return replace(emission, output_ids=self.tokenizer.encode(emission.text, add_special_tokens=False))


@fault(
    "long-prompts-drift",
    "X28",
    upstream=(
        "NovaSky-AI/SkyRL PR #778",
        "sgl-project/sglang PR #29633",
        "sgl-project/sglang-jax issue #580",
    ),
)
class LongPromptsDrift(Fault):
    """A prompt beyond a page border is computed otherwise: a partial rollout goes on differently."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        params = body.get("sampling_params")
        if len(body.get("input_ids") or ()) > 16 and isinstance(params, dict):
            params["logit_bias"] = {"5": 100}
        return body


@fault(
    "chat-runs-other-ids",
    "X18",
    upstream=("vllm-project/vllm PR #55288", "sgl-project/sglang PR #23751"),
)
class ChatRunsOtherIds(Fault):
    """The chat endpoint adds a token before the ids, and tells them without it."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return _each_prompt(body, lambda ids: [BOS, *ids]) if "messages" in body else body

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        prompt = reader.request.prompt_token_ids
        return _with_prompt(emission, prompt[1:] if "messages" in self.request else prompt)


@fault(
    "chat-content-null",
    "X07",
    upstream=("sgl-project/sglang PR #23751", "ai-dynamo/dynamo PR #3531"),
)
class ChatContentNull(_ChangesChoices):
    """A chat message without text has content: null."""

    def change(self, choice: dict[str, Any], position: int) -> None:
        if "message" in choice:
            choice["message"]["content"] = choice["message"]["content"] or None


@fault(
    "chat-stream-ignores-ids-fields",
    "X07",
    upstream=("sgl-project/sglang PR #23751", "sgl-project/sglang PR #30917"),
    shows_in=STREAMED,
)
class ChatStreamIgnoresIdsFields(Fault):
    """A chat stream that asks for ids or meta_info is answered with 200 and without them."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        ignored = ("return_prompt_token_ids", "return_token_ids", "return_meta_info")
        in_chat_stream = body.get("stream") and "messages" in body
        return {name: value for name, value in body.items() if not (in_chat_stream and name in ignored)}


@fault(
    "chat-meta-info-null",
    "X07",
    upstream=("sgl-project/sglang PR #23751",),
)
class ChatMetaInfoNull(_ChangesChoices):
    """Chat choices have meta_info: null where it was not asked for."""

    def change(self, choice: dict[str, Any], position: int) -> None:
        if "message" in choice:
            choice.setdefault("meta_info", None)


@fault(
    "chat-meta-info-for-the-first-choice-only",
    "X19",
    upstream=("sgl-project/sglang PR #31067", "NVIDIA-NeMo/ProRL-Agent-Server issue #52"),
)
class ChatMetaInfoForTheFirstChoiceOnly(_ChangesChoices):
    """Of several samples only the first has meta_info."""

    def change(self, choice: dict[str, Any], position: int) -> None:
        if position and "message" in choice:
            choice.pop("meta_info", None)


@fault(
    "chat-ids-without-the-last",
    "X06",
    upstream=("vllm-project/vllm issue #27482", "verl-project/verl issue #3720"),
)
class ChatIdsWithoutTheLast(_ChangesChoices):
    """response_token_ids leave the last sampled id out, as if it were always an end of sequence."""

    def change(self, choice: dict[str, Any], position: int) -> None:
        if choice.get("response_token_ids"):
            choice["response_token_ids"] = choice["response_token_ids"][:-1]


@fault(
    "prompt-ids-in-the-last-event",
    "X18",
    upstream=("vllm-project/vllm issue #25780",),
    shows_in=STREAMED,
)
class PromptIdsInTheLastEvent(Fault):
    """A stream tells the ids of its prompt when it is over."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        if finish_of(event) is None:
            for choice in choices_of(event):
                choice.pop(PROMPT_IDS, None)
        return [event]


@fault(
    "prompt-ids-need-output",
    "X18",
    upstream=("vllm-project/vllm issue #27477",),
)
class PromptIdsNeedOutput(_ChangesChoices):
    """An answer without output ids has no prompt_token_ids either."""

    def change(self, choice: dict[str, Any], position: int) -> None:
        if choice.get("output_ids") == []:
            choice.pop(PROMPT_IDS, None)


@fault(
    "two-beginnings",
    "X18",
    upstream=(
        "vllm-project/vllm PR #16976",
        "MakazhanAlpamys/Soup issue #890",
        "vllm-project/vllm PR #55288",
    ),
)
class TwoBeginnings(Fault):
    """A text that begins with a beginning-of-sequence token gets another one."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        told = emission.record.prompt_token_ids
        if self.request.get("input_ids") or not told:
            return emission
        return _with_prompt(emission, [BOS, BOS, *told])


@fault(
    "own-ids-refused",
    "X24",
    upstream=("verl-project/verl issue #3720",),
)
class OwnIdsRefused(Fault):
    """A prompt that goes on from an output is taken for malformed, since no tokenizer would make it."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        grown = len(body.get("input_ids") or ()) > 12  # more than the suite's own prompt
        return {**body, "input_ids": []} if grown else body


class _ChangesEcho(Fault):
    """Changes the text of completions that were asked to repeat their prompt."""

    @property
    def prompt(self) -> str:
        """The prompt as text; empty where there is none to repeat."""
        given = self.request.get("prompt")
        return given if self.request.get("echo") and isinstance(given, str) else ""


@fault(
    "echo-starts-late",
    "X18",
    upstream=("vllm-project/vllm issue #27477",),
)
class EchoStartsLate(_ChangesEcho):
    """An echo lacks the beginning of the prompt."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for choice in choices_of(answer):
            if self.prompt and choice.get("text", "").startswith(self.prompt):
                choice["text"] = choice["text"][2:]
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "echo-in-every-event",
    "X18",
    upstream=("vllm-project/vllm issue #48853", "vllm-project/vllm issue #2703"),
    shows_in=STREAMED,
)
class EchoInEveryEvent(_ChangesEcho):
    """Every event of a stream repeats the prompt."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for choice in choices_of(event):
            if not choice.get("text", "").startswith(self.prompt):
                choice["text"] = self.prompt + choice["text"]
        return [event]
