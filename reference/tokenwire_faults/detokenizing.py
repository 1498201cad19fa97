"""Faults in the detokenizer: what becomes of ids that are no whole characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenwire_faults.catalogue import EVERYWHERE, STREAMED, fault
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.detokenizer import HALF, Detokenizer
from tokenwire_reference.doors.request_manager import Emission, Reader


class _DecodesAlone(Detokenizer):
    def push(self, ids: Sequence[int]) -> str:
        return self._spelling.decode(list(ids)) if ids else ""

    def flush(self) -> str:
        return ""


@fault(
    "chunks-decoded-alone",
    "X10",
    upstream=("ai-dynamo/dynamo issue #12630", "waybarrios/vllm-mlx PR #109", "mlc-ai/mlc-llm PR #1142"),
    shows_in=STREAMED,
)
class ChunksDecodedAlone(Fault):
    """The ids of each row are decoded alone: characters that cross a border turn into U+FFFD."""

    def detokenizer(self, detokenizer: Detokenizer) -> Detokenizer:
        return _DecodesAlone(detokenizer._spelling)


class _IgnoresErrors(Detokenizer):
    def push(self, ids: Sequence[int]) -> str:
        return super().push(ids).replace("\ufffd", "")

    def flush(self) -> str:
        return super().flush().replace("\ufffd", "")


@fault(
    "broken-characters-dropped-in-streams",
    "X10",
    upstream=("abetlen/llama-cpp-python issue #372",),
    shows_in=STREAMED,
)
class BrokenCharactersDroppedInStreams(Fault):
    """Streams decode with errors='ignore': bytes that are no character vanish."""

    def detokenizer(self, detokenizer: Detokenizer) -> Detokenizer:
        return _IgnoresErrors(detokenizer._spelling) if self.request.get("stream") else detokenizer


@fault(
    "broken-characters-dropped",
    "X10",
    upstream=("tenstorrent/tt-inference-server PR #2594",),
    shows_in=EVERYWHERE,
)
class BrokenCharactersDropped(Fault):
    """Bytes that are no character vanish from every answer."""

    def detokenizer(self, detokenizer: Detokenizer) -> Detokenizer:
        return _IgnoresErrors(detokenizer._spelling)


class _LosesSpaces(Detokenizer):
    def push(self, ids: Sequence[int]) -> str:
        return super().push(ids).lstrip(" ")


@fault(
    "leading-spaces-lost",
    "X10",
    upstream=("triton-inference-server/tensorrtllm_backend issue #34", "vllm-project/vllm PR #984"),
    shows_in=STREAMED,
)
class LeadingSpacesLost(Fault):
    """Each piece of text loses the spaces that it begins with."""

    def detokenizer(self, detokenizer: Detokenizer) -> Detokenizer:
        return _LosesSpaces(detokenizer._spelling)


class _Repeats(Detokenizer):
    _again = ""

    def push(self, ids: Sequence[int]) -> str:
        again, piece = self._again, super().push(ids)
        self._again = piece[-1:] if self._open else ""
        return again + piece


@fault(
    "text-repeated-at-broken-characters",
    "X10",
    upstream=("sgl-project/sglang issue #31598",),
    shows_in=STREAMED,
)
class TextRepeatedAtBrokenCharacters(Fault):
    """While a character is incomplete the printable text seems to shrink, and its end is sent again."""

    def detokenizer(self, detokenizer: Detokenizer) -> Detokenizer:
        return _Repeats(detokenizer._spelling)


@fault(
    "prompt-text-leaks",
    "X10",
    upstream=("vllm-project/vllm issue #48853",),
    shows_in=STREAMED,
)
class PromptTextLeaks(Fault):
    """The first piece of a stream begins with the text of the prompt's last tokens."""

    def taken(self, reader: Reader, emission: Emission) -> Emission:
        from_the_start = emission.completion_tokens == len(emission.output_ids)
        if self.tokenizer is None or not (from_the_start and self.request.get("stream")):
            return emission
        before = self.tokenizer.decode(reader.request.prompt_token_ids[-5:])
        return replace(emission, text=before + emission.text)


def _printable(text: str) -> str:
    """As much of a text as may be printed while its last character is not whole: up to a CJK ideograph, or to
    the last blank. Kana are no ideographs.
    """
    if text.endswith("\n") or "\u4e00" <= text[-1:] <= "\u9fff":
        return text
    if "\u4e00" <= text[-2:-1] <= "\u9fff":
        return text[:-1]
    return text[: text.rfind(" ") + 1]


class _Prints(Detokenizer):
    """Keeps how far it has printed, also where what may be printed has become less."""

    _finished = ""
    _printed = 0

    def push(self, ids: Sequence[int]) -> str:
        self._open += ids
        text = self._spelling.decode(self._open)
        if text and not text.endswith(HALF):
            self._finished += text
            self._open, text = [], ""
        return self._print(_printable(text))

    def flush(self) -> str:
        return self._print(self._spelling.decode(self._open))

    def _print(self, unfinished: str) -> str:
        text = self._finished + unfinished
        piece, self._printed = text[self._printed :], len(text)
        return piece


@fault(
    "kana-between-kanji-sent-twice",
    "X10",
    upstream=("sgl-project/sglang issue #31598", "sgl-project/sglang PR #31564"),
    shows_in=STREAMED,
)
class KanaBetweenKanjiSentTwice(Fault):
    """While a character is incomplete, text is printed up to the last ideograph or blank: kana behind kanji
    take back what was printed, and it is sent again. Streams of several tokens to an event show it.
    """

    def detokenizer(self, detokenizer: Detokenizer) -> Detokenizer:
        return _Prints(detokenizer._spelling) if self.request.get("stream") else detokenizer


class _KeepsReplacements(Detokenizer):
    """Keeps U+FFFD at the end, whole or not, until more text comes."""

    _kept = ""

    def push(self, ids: Sequence[int]) -> str:
        text = self._kept + super().push(ids)
        shown = text.rstrip(HALF)
        self._kept = text[len(shown) :]
        return shown

    def flush(self) -> str:
        return ""


@fault("whole-replacement-character-lost-at-the-end", "X11")
class WholeReplacementCharacterLostAtTheEnd(Fault):
    """Text that ends in U+FFFD waits for more and is not given at the end, even if the model wrote it."""

    def detokenizer(self, detokenizer: Detokenizer) -> Detokenizer:
        return _KeepsReplacements(detokenizer._spelling)


class _NeverFlushes(Detokenizer):
    def flush(self) -> str:
        return ""


@fault(
    "incomplete-tail-never-flushed",
    "X11",
    upstream=("sgl-project/sglang issue #34740",),
    shows_in=EVERYWHERE,
)
class IncompleteTailNeverFlushed(Fault):
    """What waits for the rest of a character is not given at the end."""

    def detokenizer(self, detokenizer: Detokenizer) -> Detokenizer:
        return _NeverFlushes(detokenizer._spelling)


class _Lags(Detokenizer):
    _late = ""

    def push(self, ids: Sequence[int]) -> str:
        piece, self._late = self._late, super().push(ids)
        return piece

    def flush(self) -> str:
        return self._late + super().flush()


@fault(
    "text-one-emission-late",
    "X11",
    upstream=("Blaizzy/mlx-vlm PR #1129", "vllm-project/vllm issue #13087"),
    shows_in=STREAMED,
)
class TextOneEmissionLate(Fault):
    """Text waits for the next ids, whether or not it could still change."""

    def detokenizer(self, detokenizer: Detokenizer) -> Detokenizer:
        return _Lags(detokenizer._spelling)


@fault(
    "special-tokens-always-shown",
    "X12",
    upstream=("vllm-project/vllm issue #2538", "smg-project/smg PR #1122"),
    shows_in=EVERYWHERE,
)
class SpecialTokensAlwaysShown(Fault):
    """`skip_special_tokens` has no effect: special tokens stand in every text."""

    def asked(self, body: dict[str, Any]) -> dict[str, Any]:
        params = body.get("sampling_params", body)
        if isinstance(params, dict) and "tokenize" not in self.path:
            params["skip_special_tokens"] = False
        return body


@fault(
    "special-tokens-shown-in-streams",
    "X12",
    upstream=("vllm-project/vllm issue #2538", "sgl-project/sglang PR #1650", "ai-dynamo/dynamo PR #12562"),
    shows_in=STREAMED,
)
class SpecialTokensShownInStreams(Fault):
    """The text of a stream ends with the token that stopped it."""

    def text(self, reader: Reader, text: str) -> str:
        return f"{text}<|im_end|>" if self.request.get("stream") else text
