"""Shapes of requests that exploration draws from: what a dialect has words for and the target was seen to
have. Needs hypothesis (`tokenwire[explore]`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

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

_FIELDS: dict[str, SearchStrategy[Any]] = {
    "stream": st.booleans(),
    "stream_interval": st.sampled_from((1, 2, 3, 7, 16, 50, 1000)),
    "n": st.integers(2, 3),
    "temperature": st.just(1.0),
    "seed": st.integers(0, 9),
    "ignore_eos": st.booleans(),
    "min_new_tokens": st.integers(1, 4),
    "no_stop_trim": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(1, 5),
    "chosen_ids": st.lists(_ID, min_size=1, max_size=3, unique=True).map(tuple),
    "logprob_start": st.integers(0, 3),
    "return_prompt_token_ids": st.booleans(),
    "return_token_ids": st.booleans(),
    "return_meta_info": st.booleans(),
    "echo": st.booleans(),
    "usage": st.booleans(),
    "continuous_usage": st.booleans(),
}
"""Values of the fields of an ask beside prompt, budget and stops; each field is left out as often."""

_NEEDS = {
    "stream": "stream",
    "logprobs": "logprobs",
    "top_logprobs": "top-logprobs",
    "chosen_ids": "chosen-logprobs",
    "logprob_start": "prompt-logprobs",
    "return_prompt_token_ids": "prompt-token-ids",
}
"""The capability without which a field is not drawn: a target that was not seen to have it may ignore it."""


@dataclass(frozen=True)
class _Remembered:
    """What the answers so far hold that a stop may be made from."""

    texts: tuple[str, ...]
    ids: tuple[int, ...]


def _short(pieces: Iterable[str]) -> Iterator[str]:
    return (piece for piece in pieces if piece and piece.isprintable() and "\ufffd" not in piece)


def _remembered(streams: Iterable[Answer], dialect: Dialect) -> _Remembered:
    """Pieces of repeatable whole answers, so that a run with the same seed draws the same."""
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
    """Prompts in every form that the dialect takes, the simplest first."""
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


def _stops(known: _Remembered) -> dict[str, SearchStrategy[Any]]:
    texts = st.lists(st.sampled_from((_NEVER, *known.texts)), min_size=1, max_size=2, unique=True).map(tuple)
    if not known.ids:
        return {"stop": texts}
    ids = st.lists(st.sampled_from(known.ids), min_size=1, max_size=2, unique=True).map(tuple)
    return {"stop": texts, "stop_token_ids": ids}


def shapes(dialect: Dialect, run: Run) -> SearchStrategy[Ask]:
    """Asks that a dialect has words for, of what a run's target was seen to have.

    They shrink towards a whole answer to one short prompt of ids, with nothing else asked.
    """
    known = _remembered(run.streams, dialect)
    ordinary = replace(plain(dialect), stream=True)
    fields = {
        name: values
        for name, values in (_FIELDS | _stops(known)).items()
        if (name not in _NEEDS or run.capabilities[_NEEDS[name]].present)
        and dialect.can_say(replace(ordinary, **{name: _example(name, known)}))
    }

    @st.composite
    def drawn(draw: st.DrawFn) -> Ask:
        ask = replace(draw(_prompts(dialect)), max_new_tokens=draw(st.integers(0, _MOST_TOKENS)))
        chosen = {name: draw(st.none() | values) for name, values in fields.items()}
        values = {name: value for name, value in chosen.items() if value is not None}
        if values.get("n", 1) > 1:
            values["temperature"] = 1.0  # samples of a greedy choice are all the same, and some refuse them
        for name, highest in _bounds(ask).items():
            if name in values:
                values[name] = min(values[name], highest)
        return replace(ask, **values)

    return drawn()


def _bounds(ask: Ask) -> dict[str, int]:
    """The highest values with which a request still makes sense."""
    shortest = min((len(ids) for ids in ask.input_ids), default=1)
    return {"min_new_tokens": ask.max_new_tokens or 0, "logprob_start": shortest - 1}


def _example(name: str, known: _Remembered) -> Any:
    """A value of a field that differs from its default, to see whether a dialect has words for it."""
    examples: dict[str, Any] = {
        "stop": (_NEVER,),
        "stop_token_ids": known.ids[:1],
        "chosen_ids": (10,),
        "n": 2,
        "temperature": 1.0,
        "skip_special_tokens": False,
    }
    return examples.get(name, 1 if name in _COUNTS else True)


_COUNTS = ("stream_interval", "seed", "min_new_tokens", "top_logprobs", "logprob_start")
