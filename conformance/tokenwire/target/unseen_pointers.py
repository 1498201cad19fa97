"""Pointers of a user's dialect at which no answer has a value: probably errors in the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tokenwire.dialects.dialect import Dialect, dialect_of
from tokenwire.record import Answer, Delivery, Stream, fact

_NONE: frozenset[str] = frozenset()
_MOST_NAMED = 12
"""The most pointers in the remark about a dialect."""


@fact(Stream)
def _fields_found(stream: Stream) -> frozenset[str]:
    """Return the names of the fields that an answer has, if its dialect is a file of the user."""
    dialect = dialect_of(stream)
    if dialect is None or not dialect.given:
        return _NONE
    return _NONE.union(*(emission.pointers for choice in stream.choices for emission in choice.emissions))


def unseen_pointers(answers: Iterable[Answer]) -> Iterator[str]:
    """Yield a remark for each of the user's dialects that has pointers which are in none of its answers."""
    dialects: dict[str, Dialect] = {}
    answered: Counter[tuple[str, str]] = Counter()
    found: set[tuple[str, str, str]] = set()
    for answer in answers:
        dialect = dialect_of(answer)
        if dialect is not None and dialect.given and answer.answered:
            form = "whole" if answer.delivery is Delivery.WHOLE else "stream"
            dialects[dialect.name] = dialect
            answered[dialect.name, form] += 1
            found |= {(dialect.name, form, name) for name in _fields_found(answer)}
    for name, dialect in sorted(dialects.items()):
        unseen: Counter[tuple[str, tuple[str, ...]]] = Counter()
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for form in ("whole", "stream"):
            for bound in dialect.placed(form).items():
                unseen[bound] += answered[name, form]
                seen |= {bound} if (name, form, bound[0]) in found else set()
        words = [
            f"{' or '.join(pointers)} of {field} ({count})"
            for (field, pointers), count in unseen.items()
            if count and (field, pointers) not in seen
        ]
        if words:
            more = f", and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
            yield (
                f"pointers of the dialect {name} that were in none of its answers (number of answers): "
                f"{', '.join(words[:_MOST_NAMED])}{more}; correct a wrong pointer in the file"
            )
