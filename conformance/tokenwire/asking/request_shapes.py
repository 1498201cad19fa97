"""Hypothesis strategies that generate requests for `--explore`.

The requests use only what the dialect supports and the target can do. Needs hypothesis
(`tokenwire[explore]`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tokenwire.ask import Ask
from tokenwire.asking.flags import plain
from tokenwire.dialects.dialect import Dialect
from tokenwire.judging.run import Run
from tokenwire.record import Answer

_ID = st.integers(10, 250)
"""Ids that are valid in nearly every vocabulary."""
_WORDS = ("Hello", "One, two, three,", "你好", "😀", "a")
_NEVER = "\u241e\u241e"
_MOST_TOKENS = 40
_LONGEST_PROMPT = 20
_MOST_REMEMBERED = 24


class _Field(NamedTuple):
    """A request field beside prompt, token limit and stops.

    A generated request has it with a probability of one half.
    """

    values: SearchStrategy[Any]
    example: Any = True
    """A value that is not the default.

    The attempt to write the value shows if a dialect supports the field.
    """
    needs: str = ""
    """The capability without which the field is not generated, because a target without it may ignore the
    field.
    """


_FIELDS = {
    "stream": _Field(st.booleans(), needs="stream"),
    "stream_interval": _Field(st.sampled_from((1, 2, 3, 7, 16, 50, 1000)), 1),
    "n": _Field(st.integers(2, 3), 2),
    "temperature": _Field(st.just(1.0), 1.0),
    "seed": _Field(st.integers(0, 9), 1),
    "ignore_eos": _Field(st.booleans()),
    "min_new_tokens": _Field(st.integers(1, 4), 1),
    "no_stop_trim": _Field(st.booleans()),
    "skip_special_tokens": _Field(st.booleans(), False),
    "logprobs": _Field(st.booleans(), needs="logprobs"),
    "top_logprobs": _Field(st.integers(1, 5), 1, "top-logprobs"),
    "chosen_ids": _Field(
        st.lists(_ID, min_size=1, max_size=3, unique=True).map(tuple), (10,), "chosen-logprobs"
    ),
    "logprob_start": _Field(st.integers(0, 3), 1, "prompt-logprobs"),
    "return_prompt_token_ids": _Field(st.booleans(), needs="prompt-token-ids"),
    "return_token_ids": _Field(st.booleans()),
    "return_meta_info": _Field(st.booleans()),
    "echo": _Field(st.booleans()),
    "usage": _Field(st.booleans()),
    "continuous_usage": _Field(st.booleans()),
}


@dataclass(frozen=True)
class _Remembered:
    """Texts and ids of earlier answers. These texts and ids become stop strings and stop ids of requests."""

    texts: tuple[str, ...]
    ids: tuple[int, ...]


def _short(pieces: Iterable[str]) -> Iterator[str]:
    return (piece for piece in pieces if piece and piece.isprintable() and "\ufffd" not in piece)


def _remembered(streams: Iterable[Answer], dialect: Dialect) -> _Remembered:
    """Return texts and ids of earlier answers that were reproducible, so that a seed always generates the
    same requests.
    """
    texts: set[str] = set()
    ids: set[int] = set()
    for stream in streams:
        if stream.dialect != dialect.name or stream.asked.stream or not stream.asked.key:
            continue
        for choice in stream.choices:
            text = choice.text if isinstance(choice.text, str) else ""
            texts.update(_short(text[start : start + size] for start in range(1, 12, 4) for size in (1, 3)))
            ids.update(token for token in (choice.output_ids or ())[:16:3] if type(token) is int)
    return _Remembered(tuple(sorted(texts)[:_MOST_REMEMBERED]), tuple(sorted(ids)[:_MOST_REMEMBERED]))


def _prompts(dialect: Dialect) -> SearchStrategy[Ask]:
    """Return a strategy for prompts in all forms that the dialect supports.

    It shrinks to the simplest form.
    """
    ids = st.lists(_ID, min_size=1, max_size=_LONGEST_PROMPT).map(tuple)
    text = st.sampled_from(_WORDS)
    forms: list[SearchStrategy[Ask]] = [
        ids.map(lambda prompt: Ask(input_ids=(prompt,))),
        text.map(lambda prompt: Ask(text=(prompt,))),
        text.map(lambda prompt: Ask(messages=({"role": "user", "content": prompt},))),
        st.lists(ids, min_size=1, max_size=3).map(lambda some: Ask(input_ids=tuple(some), batch=True)),
        st.lists(text, min_size=1, max_size=3).map(lambda some: Ask(text=tuple(some), batch=True)),
    ]
    samples = (
        Ask(input_ids=((10,),)),
        Ask(text=("a",)),
        Ask(messages=({"role": "user", "content": "a"},)),
        Ask(input_ids=((10,),), batch=True),
        Ask(text=("a",), batch=True),
    )
    taken = [form for form, sample in zip(forms, samples, strict=True) if dialect.can_say(sample)]
    return st.one_of(taken)


def _stops(known: _Remembered) -> dict[str, _Field]:
    texts = st.lists(st.sampled_from((_NEVER, *known.texts)), min_size=1, max_size=2, unique=True).map(tuple)
    stops = {"stop": _Field(texts, (_NEVER,))}
    if known.ids:
        ids = st.lists(st.sampled_from(known.ids), min_size=1, max_size=2, unique=True).map(tuple)
        stops["stop_token_ids"] = _Field(ids, known.ids[:1])
    return stops


def shapes(dialect: Dialect, run: Run) -> SearchStrategy[Ask]:
    """Return a strategy for requests that the dialect supports and the target can answer.

    It shrinks to one short prompt of ids, without streaming or options.
    """
    ordinary = replace(plain(dialect), stream=True)
    fields = {
        name: field.values
        for name, field in (_FIELDS | _stops(_remembered(run.streams, dialect))).items()
        if (not field.needs or run.capabilities[field.needs].present)
        and dialect.can_say(replace(ordinary, **{name: field.example}))
    }

    @st.composite
    def drawn(draw: st.DrawFn) -> Ask:
        ask = replace(draw(_prompts(dialect)), max_new_tokens=draw(st.integers(0, _MOST_TOKENS)))
        chosen = {name: draw(st.none() | values) for name, values in fields.items()}
        values = {name: value for name, value in chosen.items() if value is not None}
        if values.get("n", 1) > 1:
            # Greedy sampling makes all choices equal, and some servers refuse n > 1 with it.
            values["temperature"] = 1.0
        for name, highest in _bounds(ask).items():
            if name in values:
                values[name] = min(values[name], highest)
        return replace(ask, **values)

    return drawn()


def _bounds(ask: Ask) -> dict[str, int]:
    """Return upper bounds of fields that depend on the prompt or the token limit."""
    shortest = min((len(ids) for ids in ask.input_ids), default=1)
    return {"min_new_tokens": ask.max_new_tokens or 0, "logprob_start": shortest - 1}
