"""Compares the parts of two deployments other than the weights: chat template, end ids and tokenizer.

Each part is compared by exact evidence: ids of prompts, ends after the same ids, texts of the same ids. So
the results do not depend on the precision of a side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from tokenwire.checks.reading.fields import first_prompt_ids
from tokenwire.record import BROKEN, Answer, Choice, Stream
from tokenwire.typed_table import counted

MESSAGES, WORDS, END = "messages", "words", "end"
"""The prefixes for the labels of requests that show the template, the tokenizer and the end ids."""
TEMPLATE, ENDS, TOKENIZER = "template", "ends", "tokenizer"
"""The parts, in the order of the report."""
_STOP = "stop"


@dataclass(frozen=True)
class Part:
    """The result for one part."""

    name: str
    compared: int = 0
    differing: int = 0
    by: tuple[str, ...] = ()
    """The kinds of evidence that were compared."""
    example: str = ""
    """A description of the first difference."""
    missing: str = ""
    """The reason why the part was not compared. Empty if the part was compared."""

    @property
    def differs(self) -> bool:
        return self.differing > 0


@dataclass(frozen=True)
class _Seen:
    """One comparison. `difference` is empty if both sides are equal."""

    by: str
    difference: str = ""


Labelled = Mapping[str, Stream]
"""The answers of one side, by label."""


def _part(name: str, seen: Iterable[_Seen], missing: str) -> Part:
    found = list(seen)
    apart = [one.difference for one in found if one.difference]
    kinds = tuple(dict.fromkeys(one.by for one in found))
    example = apart[0] if apart else ""
    return Part(name, len(found), len(apart), kinds, example, "" if found else missing)


def merged_parts(every: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
    """Merge the results of several comparisons."""
    given = [part for parts in every for part in parts]
    order = {name: place for place, name in enumerate(dict.fromkeys(part.name for part in given))}
    groups = groupby(sorted(given, key=lambda part: order[part.name]), key=lambda part: part.name)
    return tuple(_merged(list(parts)) for _, parts in groups)


def _merged(parts: Sequence[Part]) -> Part:
    compared = sum(part.compared for part in parts)
    return replace(
        parts[0],
        compared=compared,
        differing=sum(part.differing for part in parts),
        by=tuple(dict.fromkeys(kind for part in parts for kind in part.by)),
        example=next((part.example for part in parts if part.example), ""),
        missing="" if compared else parts[0].missing,
    )


def _only(answer: Answer) -> Choice | None:
    loaded = answer.load()
    return loaded.choices[0] if loaded.answered and len(loaded.choices) == 1 else None


def _pairs(ours: Labelled, theirs: Labelled, prefix: str) -> Iterator[tuple[str, Stream, Stream]]:
    for label in ours:
        if label.partition("-")[0] == prefix and label in theirs:
            yield label, ours[label], theirs[label]


def _prompts(ours: Labelled, theirs: Labelled, prefix: str) -> Iterator[_Seen]:
    """Compare the prompts that both sides made of the same words.

    The ids are compared or, if there are no ids, their number.
    """
    for label, first, other in _pairs(ours, theirs, prefix):
        if first.answered != other.answered:
            who = "A" if first.answered else "B"
            yield _Seen("statuses", f"only {who} answers {label}")
        mine, yours = _only(first), _only(other)
        if mine is None or yours is None:
            continue
        ids = [first_prompt_ids(choice, empty=False) for choice in (mine, yours)]
        counts = mine.counter("prompt_tokens"), yours.counter("prompt_tokens")
        if ids[0] is not None and ids[1] is not None:
            yield _Seen("prompt ids", _first_apart(ids[0][1], ids[1][1], label))
        elif None not in counts:
            words = f"{label} has {counts[0]} prompt tokens at A, {counts[1]} at B"
            yield _Seen("counts of prompt tokens", words if counts[0] != counts[1] else "")


def _first_apart(mine: Sequence[object], yours: Sequence[object], label: str) -> str:
    if list(mine) == list(yours):
        return ""
    both = enumerate(zip(mine, yours, strict=False))
    place = next((place for place, (a, b) in both if a != b), min(len(mine), len(yours)))
    lengths = (
        f"{len(mine)} and {counted(len(yours), 'id')}"
        if len(mine) != len(yours)
        else f"{counted(len(mine), 'id')}"
    )
    return f"the prompt of {label} ({lengths}) differs from its id {place} on"


def template_of(ours: Labelled, theirs: Labelled, missing: str, tokenizer: Part) -> Part:
    """Compare the prompts that both sides made of messages.

    If the tokenizers differ, the template is undecided.
    """
    part = _part(TEMPLATE, _prompts(ours, theirs, MESSAGES), missing)
    if part.differs and tokenizer.differs:
        return Part(TEMPLATE, missing="the tokenizers differ, and so do all prompts")
    return part


def ends_of(ours: Labelled, theirs: Labelled, answers: Iterable[tuple[Answer, Answer]], missing: str) -> Part:
    """Compare the end ids.

    The evidence is answers with forced ids, and answers that are equal until one of them ends.
    """
    return _part(ENDS, (*_forced_ends(ours, theirs), *_free_ends(answers)), missing)


def _forced_ends(ours: Labelled, theirs: Labelled) -> Iterator[_Seen]:
    for label, first, other in _pairs(ours, theirs, END):
        mine, yours = _only(first), _only(other)
        if mine is None or yours is None or mine.finish is None or yours.finish is None:
            continue
        ended = [choice.finish.type == _STOP for choice in (mine, yours) if choice.finish is not None]
        if any(ended):
            token = label.removeprefix(f"{END}-")
            who = "A" if ended[0] else "B"
            words = f"only {who} ends at token id {token}" if len(set(ended)) > 1 else ""
            yield _Seen("forced ids", words)


def _free_ends(answers: Iterable[tuple[Answer, Answer]]) -> Iterator[_Seen]:
    for first, other in answers:
        mine, yours = _only(first), _only(other)
        if mine is None or yours is None or mine.finish is None or yours.finish is None:
            continue
        if _STOP not in (mine.finish.type, yours.finish.type):
            continue
        texts = [_told(choice) for choice in (mine, yours)]
        if type(texts[0]) is not type(texts[1]):
            continue
        shorter, longer = sorted(texts, key=len)
        if longer[: len(shorter)] != shorter:
            continue  # the answers differ before an end
        same = len(shorter) == len(longer) and mine.finish.type == yours.finish.type
        who = "A" if mine.finish.type == _STOP else "B"
        yield _Seen("texts to their ends", "" if same else f"{first.exchange.label} ends earlier at {who}")


def _told(choice: Choice) -> tuple[object, ...] | str:
    """Return the ids of a choice, or its text if the choice has no ids."""
    return tuple(choice.output_ids) if choice.output_ids is not None else choice.text or ""


def tokenizer_of(
    ours: Labelled, theirs: Labelled, answers: Iterable[tuple[Answer, Answer]], missing: str
) -> Part:
    """Compare the ids of the same words, and the texts of the same ids."""
    return _part(TOKENIZER, (*_prompts(ours, theirs, WORDS), *_texts(answers)), missing)


def _texts(answers: Iterable[tuple[Answer, Answer]]) -> Iterator[_Seen]:
    for first, other in answers:
        mine, yours = _only(first), _only(other)
        if mine is None or yours is None or not mine.output_ids or mine.output_ids != yours.output_ids:
            continue
        texts = [choice.text for choice in (mine, yours)]
        # Server families show incomplete characters in different ways.
        broken = first.dialect != other.dialect and any(BROKEN in (text or "") for text in texts)
        if None in texts or broken:
            continue
        differ = texts[0] != texts[1] and not _ends_apart(mine, yours)
        example = f"the same {counted(len(mine.output_ids), 'id')} of {first.exchange.label} have two texts"
        yield _Seen("texts of the same ids", example if differ else "")


def _ends_apart(mine: Choice, yours: Choice) -> bool:
    """True if the choices ended differently. Then the text of an end id may be missing from one of them."""
    finishes = [choice.finish.type if choice.finish is not None else None for choice in (mine, yours)]
    return finishes[0] != finishes[1]
