"""Logprobs in vLLM's shapes: three for outputs, and one for prompts."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from tokenwire_reference.core.detokenizer import Detokenizer, Kind, spelling
from tokenwire_reference.core.request import Request, SamplingParams
from tokenwire_reference.core.tokenizer import Tokenizer
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.vllm.call import LogprobsAsked


@dataclass(frozen=True)
class ScoredToken:
    """A position with its token, and the likeliest tokens, best first."""

    logprob: float
    token_id: int
    rank: int
    best: Sequence[tuple[float, int]]


def scored_outputs(emission: Emission, top: int, chosen: Collection[int] = ()) -> Iterator[ScoredToken]:
    """Yield the new tokens of an emission, each with the `top` likeliest tokens at its position.

    `chosen`: ids that the request chose. If there are any, each token comes with itself and these ids.
    """
    entries = emission.series.get("output_token_logprobs", ())
    ranks = emission.series.get("output_token_ranks", ())
    if not chosen:
        return _scored(entries, ranks, emission.series.get("output_top_logprobs"), top)
    rows = emission.series.get("output_token_ids_logprobs", ())
    others = [
        [other for other in row if other[1] != e[1] and other[1] in chosen]
        for e, row in zip(entries, rows, strict=True)
    ]
    return _scored(entries, ranks, [[e, *row] for e, row in zip(entries, others, strict=True)], -1)


def _scored_prompt(emission: Emission, top: int) -> Iterator[ScoredToken]:
    """Yield the tokens of the prompt except the first, which has no logprob."""
    series = emission.record.prompt_series
    entries, best = series.get("input_token_logprobs", ()), series.get("input_top_logprobs")
    ranks = series.get("input_token_ranks", ())
    return _scored(entries[1:], ranks[1:], best[1:] if best else None, top)


def _scored(
    entries: Sequence[Any], ranks: Sequence[Any], rows: Sequence[Any] | None, top: int
) -> Iterator[ScoredToken]:
    rows = [()] * len(entries) if rows is None else rows
    for entry, rank, row in zip(entries, ranks, rows, strict=True):
        best = row if top < 0 else row[:top]
        yield ScoredToken(entry[0], entry[1], rank, [(other[0], other[1]) for other in best])


def token_text(tokenizer: Tokenizer | None, token_id: int) -> str:
    """Return the text of one token; empty for a part of a character."""
    text = f"token_id:{token_id}" if tokenizer is None else tokenizer.decode([token_id])
    return "" if "\ufffd" in text else text


class TextOffsets:
    """Counts the offsets of one choice's tokens in the text of the choice."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._output = Detokenizer.of(tokenizer, sampling, prompt)
        self._length = 0

    def echoed(self, prompt: Sequence[int]) -> Iterator[int]:
        """Yield the offsets of the tokens of an echoed prompt."""
        spelled = spelling(self._tokenizer, skip_special_tokens=False)
        yield from self._passed(Detokenizer(spelled), prompt)
        self._length = len(spelled.decode(prompt))

    def of(self, ids: Sequence[int]) -> Iterator[int]:
        """Yield the offsets of the next output ids."""
        return self._passed(self._output, ids)

    def _passed(self, detokenizer: Detokenizer, ids: Sequence[int]) -> Iterator[int]:
        for token_id in ids:
            # A complete character cannot complete the waiting bytes before it, so these bytes are replaced. A
            # hidden token does not affect waiting bytes, which may continue after it.
            ends = (
                token_text(self._tokenizer, token_id)
                and detokenizer.spelling.kind(token_id) is not Kind.SILENT
            )
            yield self._length + (len(detokenizer.flush()) if ends else 0)
            self._length += len(detokenizer.push([token_id]))


class NameOffsets:
    """Counts the offsets of tokens in the joined token names.

    If a request wants ids in place of texts, the names contain the ids.
    """

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._length = 0

    def of(self, ids: Sequence[int]) -> Iterator[int]:
        """Yield the offsets of the next ids, of the prompt or the output."""
        for token_id in ids:
            yield self._length
            self._length += len(self._name(token_id))

    echoed = of


class LogprobWriter:
    """Writes the logprobs of one call."""

    def __init__(self, asked: LogprobsAsked, tokenizer: Tokenizer | None) -> None:
        self._top = asked.top or 0
        self._prompt_top = asked.prompt
        self._tokenizer = tokenizer
        self._as_token_ids = asked.as_token_ids
        self._chosen = frozenset(asked.chosen)
        self._asked = asked

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_token_ids else token_text(self._tokenizer, token_id)

    def as_content(self, emission: Emission) -> dict[str, Any]:
        """Return the logprobs in chat's form, with texts and bytes."""
        return {
            "content": [
                {
                    **self._named(token.logprob, token.token_id),
                    "top_logprobs": [self._named(*other) for other in token.best],
                }
                for token in self._outputs(emission)
            ]
        }

    def _outputs(self, emission: Emission) -> Iterator[ScoredToken]:
        return scored_outputs(emission, self._top, self._chosen)

    def _named(self, logprob: float, token_id: int) -> dict[str, Any]:
        text = token_text(self._tokenizer, token_id)
        return {"token": self._name(token_id), "logprob": logprob, "bytes": list(text.encode())}

    def as_ids(self, emission: Emission) -> dict[str, Any]:
        """Return the logprobs in the form of `/inference/v1/generate` without text.

        The ranks of chosen ids are not computed.
        """

        def rank_of(place: int, token: ScoredToken) -> int | None:
            return place if not self._chosen else token.rank if place == 1 else None

        return {
            "content": [
                {
                    "token_id": token.token_id,
                    "logprob": token.logprob,
                    "rank": token.rank,
                    "top_logprobs": [
                        {"token_id": other, "logprob": logprob, "rank": rank_of(place, token)}
                        for place, (logprob, other) in enumerate(token.best, 1)
                    ],
                }
                for token in self._outputs(emission)
            ]
        }

    def offsets(self, request: Request) -> TextOffsets | NameOffsets:
        """Return the counter of a choice's offsets."""
        if self._tokenizer is None or self._as_token_ids:
            return NameOffsets(self._name)
        return TextOffsets(self._tokenizer, request.sampling, request.prompt_token_ids)

    def as_lists(
        self, emission: Emission, offsets: TextOffsets | NameOffsets, *, echo: bool
    ) -> dict[str, Any]:
        """Return the logprobs in the form of completions.

        There is an entry for each token of the emission, after the entries of an echoed prompt.
        """
        tokens = list(self._outputs(emission))
        unscored: list[int] = []
        if echo:
            unscored = list(emission.record.prompt_token_ids[:1])
            tokens = [*_scored_prompt(emission, self._top), *tokens]
        names = [self._name(i) for i in (*unscored, *(token.token_id for token in tokens))]
        nulls = [None] * len(unscored)
        of_prompt = offsets.echoed(emission.record.prompt_token_ids) if echo else ()
        return {
            "text_offset": [*of_prompt, *offsets.of(emission.output_ids)],
            "token_logprobs": [*nulls, *(token.logprob for token in tokens)],
            "tokens": names,
            "top_logprobs": [*nulls, *(self._by_name(token) for token in tokens)],
        }

    def _by_name(self, token: ScoredToken) -> dict[str, float]:
        """Return logprobs by token name, the chosen token first.

        If several tokens have the same name, the first is returned.
        """
        named: dict[str, float] = {}
        for logprob, token_id in ((token.logprob, token.token_id), *token.best):
            named.setdefault(self._name(token_id), logprob)
        return named

    def of_prompt(self, emission: Emission) -> list[dict[str, Any] | None] | None:
        """Return the logprobs of each prompt position; null for the first, which has none."""
        if self._prompt_top is None:
            return None
        positions: list[dict[str, Any] | None] = [None]
        for token in _scored_prompt(emission, self._prompt_top):
            entries = {str(token.token_id): self._ranked(token.logprob, token.rank, token.token_id)}
            for rank, (logprob, token_id) in enumerate(token.best, 1):
                entries.setdefault(str(token_id), self._ranked(logprob, rank, token_id))
            positions.append(entries)
        return positions

    def of_ids(self, emission: Emission) -> str | None:
        """Return the logprobs of the ids that the request names for each prompt position, as a file of numpy
        in base64. The logprob of a padding id is minus infinity. None without such ids.
        """
        rows = self._asked.of_prompt
        if not rows:
            return None
        scored = emission.record.prompt_series.get("input_token_ids_logprobs", ())
        values = numpy.full((len(rows), max(map(len, rows))), -numpy.inf, numpy.float32)
        for number, (ids, entries) in enumerate(zip(rows, scored[1 + self._asked.first_row :], strict=True)):
            known = {token_id: logprob for logprob, token_id, _ in entries}
            values[number, : len(ids)] = [known.get(token_id, -numpy.inf) for token_id in ids]
        with io.BytesIO() as file:
            numpy.save(file, values, allow_pickle=False)
            return base64.b64encode(file.getbuffer()).decode()

    def _ranked(self, logprob: float, rank: int, token_id: int) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": token_text(self._tokenizer, token_id)}
