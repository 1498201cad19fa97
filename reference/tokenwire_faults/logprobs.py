"""Faults in logprobs: of the output, of the top, of chosen ids, and of the prompt."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

from tokenwire_faults.altered_rows import OutputRow
from tokenwire_faults.answer_shape import choices_of, meta_infos
from tokenwire_faults.catalogue import INCREMENTAL, STREAMED, WHOLE, fault
from tokenwire_faults.fault import Fault, Json
from tokenwire_reference.core.request import Request
from tokenwire_reference.doors.json_answer import to_json
from tokenwire_reference.doors.request_manager import Emission, Reader

SELECTED, TOP, CHOSEN = "output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"


def _row_with(row: OutputRow, name: str, change: Callable[[list[Any]], list[Any]]) -> OutputRow:
    """A row with one of its series changed; as it is where it has no such."""
    if name not in row.series:
        return row
    return replace(row, series={**row.series, name: change(list(row.series[name]))})


def _prompt_with(row: OutputRow, name: str, change: Callable[[list[Any]], list[Any]]) -> OutputRow:
    """A row with one series of its prompt changed; as it is where it has no such."""
    if not row.prompt_series.get(name):
        return row
    return replace(row, prompt_series={**row.prompt_series, name: change(list(row.prompt_series[name]))})


class _OneLogprobWrong(Fault):
    """One sampled token of an answer has a wrong logprob, wherever no top logprobs show it."""

    position = 0
    value = 0.0
    relative = False

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        at = self.position - row.start
        if request.top_logprobs_num or not 0 <= at < row.end - row.start:
            return row

        def wrong(entries: list[Any]) -> list[Any]:
            number = entries[at][0] + self.value if self.relative else self.value
            return [*entries[:at], [number, *entries[at][1:]], *entries[at + 1 :]]

        return _row_with(row, SELECTED, wrong)


@fault(
    "first-logprob-zero", "X27", upstream=("NVIDIA/TensorRT-LLM issue #2406", "huggingface/trl issue #4159")
)
class FirstLogprobZero(_OneLogprobWrong):
    """The token that the prefill samples has logprob 0: only decode steps compute it."""


@fault("eighth-logprob-too-low", "X27", upstream=("vllm-project/vllm issue #9453",))
class EighthLogprobTooLow(_OneLogprobWrong):
    """The logprob of one position lies three nats too low, in each answer."""

    position, value, relative = 7, -3.0, True


@fault(
    "logprobs-dropped-in-streams",
    "X07",
    upstream=("modelscope/ms-swift PR #9866", "kekzl/imp issue #1588", "ml-explore/mlx-lm PR #1630"),
    shows_in=STREAMED,
)
class LogprobsDroppedInStreams(Fault):
    """Streams carry no logprobs, though they were asked for and are in whole answers."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for info in meta_infos(event):
            for name in (SELECTED, TOP, CHOSEN, "output_token_logprobs_length"):
                info.pop(name, None)
        return [event]


@fault(
    "logprob-texts-ignored",
    "X07",
    upstream=("sgl-project/sglang PR #34627",),
)
class LogprobTextsIgnored(Fault):
    """return_text_in_logprobs is taken, and the entries have null in the place of their text."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name != "return_text_in_logprobs"}


@fault(
    "chat-logprobs-null-in-streams",
    "X27",
    upstream=("sgl-project/sglang PR #28601", "sgl-project/sglang PR #26782"),
    shows_in=(INCREMENTAL,),
)
class ChatLogprobsNullInStreams(Fault):
    """The branch of the chat handler that parses content writes logprobs: null into every chunk."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for choice in event.get("choices", ()):
            choice["logprobs"] = None
        return [event]


@fault(
    "logprobs-dropped-without-prompt-logprobs",
    "X07",
    upstream=("sgl-project/sglang PR #34627",),
    shows_in=(WHOLE,),
)
class LogprobsDroppedWithoutPromptLogprobs(Fault):
    """Output logprobs are dropped where the logprobs of the prompt were not asked for."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for info in meta_infos(answer):
            if not info.get("input_token_logprobs"):
                info.pop(SELECTED, None)
        return status, answer


@fault(
    "logprobs-popped-at-finish",
    "X06",
    upstream=("ikawrakow/ik_llama.cpp PR #998", "InternLM/lmdeploy issue #4241"),
)
class LogprobsPoppedAtFinish(Fault):
    """The last logprob entry is taken off at the end, as if it were a stop token's."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if emission.finish is None or SELECTED not in emission.series:
            return emission
        return replace(emission, series={**emission.series, SELECTED: emission.series[SELECTED][:-1]})


@fault(
    "logprobs-past-the-cut",
    "X06",
    upstream=("sgl-project/sglang PR #20799", "NVIDIA/TensorRT-LLM PR #18190"),
)
class LogprobsPastTheCut(Fault):
    """Tokens accepted beyond the end are cut off the ids, and stay in the logprobs."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if emission.finish is None or not emission.series.get(SELECTED):
            return emission
        kept = [*emission.series[SELECTED], emission.series[SELECTED][-1]]
        return replace(emission, series={**emission.series, SELECTED: kept})


@fault(
    "top-logprobs-of-the-first",
    "X08",
    upstream=("sgl-project/sglang issue #39260", "sgl-project/sglang issue #5761"),
)
class TopLogprobsOfTheFirst(Fault):
    """All tokens of a row have the top logprobs of its first."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _row_with(row, TOP, lambda entries: entries[:1] * len(entries))


@fault(
    "top-logprobs-one-short",
    "X08",
    upstream=("theroyallab/tabbyAPI PR #141",),
)
class TopLogprobsOneShort(Fault):
    """One of the top logprobs is missing at every position: the sampled one was not counted."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _row_with(row, TOP, lambda entries: [entry[:-1] for entry in entries])


@fault(
    "top-logprobs-unsorted",
    "X08",
    upstream=("raullenchai/Rapid-MLX issue #220",),
)
class TopLogprobsUnsorted(Fault):
    """The top logprobs come worst first."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _row_with(row, TOP, lambda entries: [entry[::-1] for entry in entries])


@fault(
    "logprobs-all-zero",
    "X08",
    upstream=("NVIDIA/TensorRT-LLM issue #2406",),
)
class LogprobsAllZero(Fault):
    """Every sampled token has logprob 0."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _row_with(row, SELECTED, lambda entries: [[0.0, *entry[1:]] for entry in entries])


@fault(
    "probabilities-for-logprobs",
    "X08",
    upstream=("huggingface/trl issue #4159",),
)
class ProbabilitiesForLogprobs(Fault):
    """Probabilities stand where logprobs should."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _row_with(row, SELECTED, lambda entries: [[math.exp(e[0]), *e[1:]] for e in entries])


@fault(
    "logprobs-raw-in-streams",
    "X08",
    upstream=("PrimeIntellect-ai/prime-rl PR #697", "vllm-project/vllm issue #9453"),
    shows_in=STREAMED,
)
class LogprobsRawInStreams(Fault):
    """Streams and whole answers disagree about whether temperature is applied to logprobs."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        if not request.stream:
            return row
        return _row_with(row, SELECTED, lambda entries: [[e[0] / 0.7, *e[1:]] for e in entries])


@fault(
    "logprobs-minus-infinity",
    "X16",
    upstream=("sgl-project/sglang issue #4097", "dphnAI/sonar issue #183"),
)
class LogprobsMinusInfinity(Fault):
    """A logprob of minus infinity is written as -Infinity, which is no JSON."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for info in meta_infos(event):
            for entry in info.get(SELECTED, ())[:1]:
                entry[0] = "-Infinity"
        return [event]

    def frame(self, frame: bytes) -> Iterable[bytes]:
        return [frame.replace(b'"-Infinity"', b"-Infinity")]

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        self.event(answer)
        return status, b"".join(self.frame(to_json(answer)))


@fault(
    "logprobs-of-the-next-id",
    "X09",
    upstream=("foundation-model-stack/fms-guardrails-orchestrator issue #477",),
)
class LogprobsOfTheNextId(Fault):
    """Logprob entries are one token ahead of the ids."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _row_with(
            row,
            SELECTED,
            lambda entries: (
                entries[1:] + entries[-1:]
                if row.end - row.start > 1
                else [[e[0], e[1] + 1, e[2]] for e in entries]
            ),
        )


@fault(
    "chosen-logprobs-sorted",
    "X08",
    upstream=("sgl-project/sglang PR #10764",),
)
class ChosenLogprobsSorted(Fault):
    """The logprobs of chosen ids come in the order of the ids, not of the request."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _row_with(row, CHOSEN, lambda rows: [sorted(e, key=lambda one: int(one[1])) for e in rows])


@fault(
    "prompt-logprobs-without-the-first",
    "X18",
    upstream=("vllm-project/vllm issue #27477", "vllm-project/vllm issue #15420"),
)
class PromptLogprobsWithoutTheFirst(Fault):
    """The first prompt position, which has no logprob, is left out: all others are off by one."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _prompt_with(row, "input_token_logprobs", lambda entries: entries[1:])


@fault(
    "prompt-logprobs-null-at-the-border",
    "X18",
    upstream=("strands-rl/strands-sglang issue #34",),
)
class PromptLogprobsNullAtTheBorder(Fault):
    """The first token behind a border of scoring has a null logprob: one is lost for each turn."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _prompt_with(
            row,
            "input_token_logprobs",
            lambda entries: [*entries[:1], *([None, *e[1:]] for e in entries[1:2]), *entries[2:]],
        )


@fault("boundary-logprob-is-null", "X18", upstream=("strands-rl/strands-sglang issue #34",))
class BoundaryLogprobIsNull(Fault):
    """The first prompt id that is scored has a null logprob, also where others stand before it."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _prompt_with(
            row, "input_token_logprobs", lambda entries: [[None, *entries[0][1:]], *entries[1:]]
        )


@fault(
    "prompt-logprobs-of-the-uncached-tail",
    "X28",
    upstream=("vllm-project/vllm issue #3251", "vllm-project/vllm issue #8268"),
)
class PromptLogprobsOfTheUncachedTail(Fault):
    """With a warm cache only the tail of the prompt that was computed has logprobs."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _prompt_with(row, "input_token_logprobs", lambda entries: entries[len(entries) // 2 :])


@fault(
    "prompt-logprobs-of-the-first-chunk",
    "X28",
    upstream=("sgl-project/sglang PR #2403",),
    shows_in=STREAMED,
)
class PromptLogprobsOfTheFirstChunk(Fault):
    """Only the first event has the logprobs of the whole prompt; later ones those of its first chunk."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for info in meta_infos(event):
            if info["completion_tokens"] > 1 and info.get("input_token_logprobs"):
                info["input_token_logprobs"] = info["input_token_logprobs"][:2]
        return [event]


@fault(
    "logprobs-unasked",
    "X07",
    upstream=("vllm-project/vllm PR #27561",),
)
class LogprobsUnasked(Fault):
    """Logprob lists stand in answers to requests that did not ask, empty."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for info in meta_infos(answer):
            info.setdefault(SELECTED, [])
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "logprob-counter-of-the-event",
    "X17",
    upstream=("sgl-project/sglang PR #21583",),
    shows_in=(INCREMENTAL,),
)
class LogprobCounterOfTheEvent(Fault):
    """output_token_logprobs_length counts the entries of the event, not those of the choice so far."""

    def event(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for info in meta_infos(event):
            if SELECTED in info:
                info["output_token_logprobs_length"] = len(info[SELECTED])
        yield event


@fault(
    "chat-logprobs-lost-with-empty-text",
    "X27",
    upstream=("vllm-project/vllm PR #29074", "sgl-project/sglang PR #28601"),
    shows_in=(INCREMENTAL,),
)
class ChatLogprobsLostWithEmptyText(Fault):
    """A chunk whose token shows no text yet is dropped, and its logprobs with it."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        lost = any(
            choice.get("logprobs") and not choice.get("delta", {}).get("content")
            for choice in choices_of(event)
        )
        return [] if lost else [event]


@fault(
    "logprobs-lost-with-held-text",
    "X27",
    upstream=("sgl-project/sglang PR #28601",),
    shows_in=(INCREMENTAL,),
)
class LogprobsLostWithHeldText(Fault):
    """A chunk of completions whose token shows no text yet has its id, and no logprobs."""

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        for choice in choices_of(event) if event.get("object") == "text_completion" else ():
            if choice.get("logprobs") and not choice.get("text") and not choice.get("finish_reason"):
                choice["logprobs"] = None
        return [event]


@fault("no-budget-has-a-top-logprob", "X06", upstream=("sgl-project/sglang issue #39260",))
class NoBudgetHasATopLogprob(Fault):
    """A request for no token is told the alternatives of the first one."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for info in meta_infos(answer):
            if info.get(TOP) == [] and info.get("completion_tokens") == 0:
                info[TOP] = [[[-1.5, 7, None], [-2.5, 8, None]]]
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "chat-logprobs-repeat-the-first",
    "X08",
    upstream=("sgl-project/sglang issue #39260", "theroyallab/tabbyAPI PR #141"),
)
class ChatLogprobsRepeatTheFirst(Fault):
    """All tokens of a chat answer or chunk have the entry of its first."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for choice in choices_of(answer):
            content = (choice.get("logprobs") or {}).get("content")
            if content:
                choice["logprobs"]["content"] = content[:1] * len(content)
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


class _ChangesLists(Fault):
    """Changes the parallel lists of completions' logprobs."""

    def change(self, lists: dict[str, Any]) -> None:
        """Change the lists of one choice of an answer or a chunk."""

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for choice in choices_of(answer):
            if "token_logprobs" in (choice.get("logprobs") or {}):
                self.change(choice["logprobs"])
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "completion-tokens-without-the-last",
    "X06",
    upstream=("theroyallab/tabbyAPI PR #141", "kekzl/imp issue #1589"),
)
class CompletionTokensWithoutTheLast(_ChangesLists):
    """The list of token texts of a completion lacks its last, which the others have."""

    def change(self, lists: dict[str, Any]) -> None:
        lists["tokens"] = lists["tokens"][:-1]


@fault("top-logprobs-overwritten-by-text", "X08", upstream=("sgl-project/sglang issue #39260",))
class TopLogprobsOverwrittenByText(Fault):
    """Completions put the likeliest tokens under their texts: of those with one text, the last is kept."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        rows = emission.series.get(TOP)
        if self.tokenizer is None or rows is None or not self.path.endswith("/v1/completions"):
            return emission
        told = []
        for row in rows:
            texts = [self.tokenizer.decode([entry[1]]) for entry in row]
            last = dict(zip(texts, (entry[0] for entry in row), strict=True))
            told.append([[last[text], *entry[1:]] for text, entry in zip(texts, row, strict=True)])
        return replace(emission, series={**emission.series, TOP: told})


@fault(
    "text-offsets-from-each-token",
    "X18",
    upstream=("vllm-project/vllm PR #47815",),
)
class TextOffsetsFromEachToken(_ChangesLists):
    """Text offsets begin again with each token."""

    def change(self, lists: dict[str, Any]) -> None:
        lists["text_offset"] = [0] * len(lists["tokens"])


@fault("text-offsets-count-hidden-tokens", "X18", upstream=("vllm-project/vllm PR #19379",))
class TextOffsetsCountHiddenTokens(Fault):
    """Text offsets count the names of all tokens, also of those that the text hides."""

    def __init__(self) -> None:
        self._counted: Counter[int] = Counter()

    def answered(self, status: int, answer: Json) -> tuple[int, Json]:
        for choice in choices_of(answer):
            lists, index = choice.get("logprobs") or {}, choice.get("index", 0)
            if "text_offset" in lists:
                *offsets, end = accumulate(map(len, lists["tokens"]), initial=self._counted[index])
                lists["text_offset"], self._counted[index] = offsets, end
        return status, answer

    def event(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        return [self.answered(200, event)[1]]


@fault(
    "prompt-top-logprobs-shifted",
    "X18",
    upstream=("strands-rl/strands-sglang issue #33", "vllm-project/vllm issue #15420"),
)
class PromptTopLogprobsShifted(Fault):
    """The alternatives at each prompt position are those of the next one."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _prompt_with(row, "input_top_logprobs", lambda rows: [*rows[:1], *rows[2:], *rows[1:2]])


@fault(
    "prompt-scored-at-another-temperature",
    "X08",
    upstream=("vllm-project/vllm issue #10234", "PrimeIntellect-ai/prime-rl PR #697"),
)
class PromptScoredAtAnotherTemperature(Fault):
    """Prompt logprobs are divided by a temperature that output logprobs know nothing of."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _prompt_with(
            row,
            "input_token_logprobs",
            lambda entries: [[e[0] and e[0] / 0.7, *e[1:]] for e in entries],
        )


def _at_temperature_1(request: Request, row: OutputRow) -> OutputRow:
    """A row whose logprobs lie as far apart as those of the model."""
    warmth = request.sampling.temperature
    if warmth < 1e-6:
        return row
    row = _row_with(row, SELECTED, lambda entries: [[e[0] * warmth, *e[1:]] for e in entries])
    return _row_with(row, TOP, lambda rows: [[[e[0] * warmth, *e[1:]] for e in top] for top in rows])


@fault(
    "streams-forget-the-temperature",
    "X08",
    upstream=("PrimeIntellect-ai/prime-rl PR #697", "NVIDIA-NeMo/RL issue #902"),
    shows_in=STREAMED,
)
class StreamsForgetTheTemperature(Fault):
    """Whole answers tell logprobs divided by the temperature, streams those of the model."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _at_temperature_1(request, row) if request.stream else row


@fault(
    "streams-renormalise-logprobs",
    "X08",
    upstream=("vllm-project/vllm issue #9453",),
    shows_in=STREAMED,
)
class StreamsRenormaliseLogprobs(Fault):
    """Streams tell logprobs among the top_k ids that were left, whole answers among all."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        k = request.sampling.top_k
        if not request.stream or not 1 < k <= request.top_logprobs_num or TOP not in row.series:
            return row
        masses = [math.log(sum(math.exp(entry[0]) for entry in top[:k])) for top in row.series[TOP]]

        def among_the_left(entries: list[Any]) -> list[Any]:
            return [[e[0] - mass, *e[1:]] for e, mass in zip(entries, masses, strict=True)]

        def tops(rows: list[Any]) -> list[Any]:
            return [[[e[0] - mass, *e[1:]] for e in top] for top, mass in zip(rows, masses, strict=True)]

        return _row_with(_row_with(row, SELECTED, among_the_left), TOP, tops)


@fault(
    "logprobs-ignore-the-temperature",
    "X08",
    upstream=("huggingface/trl issue #4159", "NVIDIA-NeMo/RL issue #902"),
)
class LogprobsIgnoreTheTemperature(Fault):
    """All logprobs are those of the model, and the server says that they are divided by the temperature."""

    def row(self, request: Request, row: OutputRow) -> OutputRow:
        return _at_temperature_1(request, row)


@fault(
    "echo-without-prompt-logprobs",
    "X18",
    upstream=("ggml-org/llama.cpp issue #27174", "vllm-project/vllm issue #2703"),
)
class EchoWithoutPromptLogprobs(Fault):
    """An echo shows the prompt, and logprobs of the output alone."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        if not self.request.get("echo"):
            return emission
        return replace(emission, record=replace(emission.record, prompt_series={}))
