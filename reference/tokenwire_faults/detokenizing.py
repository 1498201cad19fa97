"""Faults in the detokenizer: wrong text for ids that are not complete characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Object, finish_of, placed_choices
from tokenwire_faults.fault import Fault
from tokenwire_reference.core.detokenizer import HALF, Detokenizer
from tokenwire_reference.doors.reader import Emission, Reader


class _DecodesAlone(Detokenizer):
    def push(self, ids: Sequence[int]) -> str:
        return self.spelling.decode(list(ids)) if ids else ""

    def flush(self) -> str:
        return ""


class _Repeats(Detokenizer):
    _again = ""

    def push(self, ids: Sequence[int]) -> str:
        again, piece = self._again, super().push(ids)
        self._again = piece[-1:] if self._open else ""
        return again + piece


def _printable(text: str) -> str:
    """Return the part of a text that may be printed while its last character is incomplete.

    It ends after a CJK ideograph, or at the last blank. Kana are not ideographs.
    """
    if text.endswith("\n") or "\u4e00" <= text[-1:] <= "\u9fff":
        return text
    if "\u4e00" <= text[-2:-1] <= "\u9fff":
        return text[:-1]
    return text[: text.rfind(" ") + 1]


class _Prints(Detokenizer):
    """A detokenizer that does not repeat printed text, even if the printable text becomes shorter."""

    _finished = ""
    _printed = 0

    def push(self, ids: Sequence[int]) -> str:
        self._open += ids
        text = self.spelling.decode(self._open)
        if text and not text.endswith(HALF):
            self._finished += text
            self._open, text = [], ""
        return self._print(_printable(text))

    def flush(self) -> str:
        return self._print(self.spelling.decode(self._open))

    def _print(self, unfinished: str) -> str:
        text = self._finished + unfinished
        piece, self._printed = text[self._printed :], len(text)
        return piece


class _KeepsReplacements(Detokenizer):
    """A detokenizer that holds back every U+FFFD at the end of a text, even a complete one."""

    _kept = ""

    def push(self, ids: Sequence[int]) -> str:
        text = self._kept + super().push(ids)
        shown = text.rstrip(HALF)
        self._kept = text[len(shown) :]
        return shown

    def flush(self) -> str:
        return ""


class _Lags(Detokenizer):
    _late = ""

    def push(self, ids: Sequence[int]) -> str:
        piece, self._late = self._late, super().push(ids)
        return piece

    def flush(self) -> str:
        return self._late + super().flush()


_DETOKENIZERS = {
    "chunks-decoded-alone": _DecodesAlone,
    "text-repeated-at-broken-characters": _Repeats,
    "kana-between-kanji-sent-twice": _Prints,
    "whole-replacement-character-lost-at-the-end": _KeepsReplacements,
    "text-one-emission-late": _Lags,
}


@act_at("detokenizer", *_DETOKENIZERS)
def _take_its_place(fault: Fault, detokenizer: Detokenizer) -> Detokenizer:
    return _DETOKENIZERS[fault.known.name](detokenizer.spelling)


@act_at("taken")
def _prompt_text_leaks(fault: Fault, reader: Reader, emission: Emission) -> Emission:
    from_the_start = emission.completion_tokens == len(emission.output_ids)
    if fault.tokenizer is None or not from_the_start:
        return emission
    return replace(
        emission, text=fault.tokenizer.decode(reader.request.prompt_token_ids[-5:]) + emission.text
    )


@act_at("asked")
def _special_tokens_always_shown(fault: Fault, body: Object) -> Object:
    params = body.get("sampling_params", body)
    if isinstance(params, dict) and "tokenize" not in fault.path:
        params["skip_special_tokens"] = False
    return body


@act_at("events")
def _text_one_emission_early(fault: Fault, event: Object) -> Iterable[Object]:
    """Delay each event and give it the text of the next event of its choice."""
    place, choice = next(
        ((place, shown) for place, shown in placed_choices(event) if "text" in shown), (None, {})
    )
    if place is None:
        return [event]
    waiting = [fault.memory.pop(str(place))] if str(place) in fault.memory else []
    for earlier in waiting:
        for _, shown in placed_choices(earlier):
            shown["text"] += choice["text"]
        choice["text"] = ""
    if finish_of(event):
        return [*waiting, event]
    fault.memory[str(place)] = event
    return waiting
