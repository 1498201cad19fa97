"""Kinds of failures: the constant part of a violation's message, which identifies the failure in later runs.

Numbers, quoted texts and lists are removed from the message. The dialect, the place in the event, and the
words of the check remain.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from tokenwire.checks.evidence import Observation
from tokenwire.judging.judge import Judgement
from tokenwire.typed_table import plural_of
from tokenwire.wire.inert import inert

_QUOTE = re.compile(r"['\"]")
_IN_SINGLE = re.compile(r"[^'\\]*+(?:\\.[^'\\]*+)*+'", re.DOTALL)
_IN_DOUBLE = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_QUOTED_UP_TO = {"'": _IN_SINGLE.match, '"': _IN_DOUBLE.match}
"""Functions that match the rest of a quoted text, by the quotation mark."""
_BRACKETED = re.compile(r"\[[^][]*\]|\{[^{}]*\}")
_WORD = re.compile(r"[\w.+-]++")
_DIGIT = re.compile(r"\d")
_REPEATED = re.compile(r"#(?:, #)+")
# "1 output id" and "4 output ids" are one kind, because the number varies between runs.
_SINGLE = re.compile(
    r"(?<=# )(?:output )?(?:byte|character|choice|entry|event|exchange|field|id|item|number|row|token)\b"
)
# A race may lose an entry in either of two answers. Which answer lacks it is not part of the kind.
_ONE_SIDE_HAS_MORE = re.compile(r"is (?:missing|too much): # instead of the #")
# Two requests must be accepted or refused alike. The kind of a failure does not depend on their order.
_ONE_WAS_REFUSED = re.compile(r"were (?:refused, and answered|answered, and refused) in")
_LETTERS_OF_A_FINGERPRINT = 12
_DEEPEST_LIST = 50
"""The maximum depth of nested lists that are removed."""


@dataclass(frozen=True)
class FailureKind:
    """A way in which an answer violates a requirement."""

    dialect: str
    """The name of the dialect, or `-` if the violation is not in a single answer."""
    says: str
    """The place in the event and the message, without the parts that vary between runs."""

    @property
    def words(self) -> str:
        """The message without the place, which each dialect names differently."""
        place, separator, words = self.says.partition(": ")
        return words if separator and place.startswith("/") else self.says

    @property
    def fingerprint(self) -> str:
        """A hash that is equal exactly for equal kinds."""
        both = f"{self.dialect}\n{self.says}".encode()
        return hashlib.sha256(both).hexdigest()[:_LETTERS_OF_A_FINGERPRINT]


def lasting_words(text: str) -> str:
    """Return a text without parts that vary between runs: quoted texts, lists, words with digits, plurals."""
    text = without_quoted(" ".join(text.split()))
    # Lists may contain lists, so the innermost ones are replaced first.
    for _ in range(_DEEPEST_LIST):
        before, text = text, _BRACKETED.sub("…", text)
        if before == text:
            break
    return either_way(_REPEATED.sub("#, …", _WORD.sub(_without_digits, text)))


def either_way(says: str) -> str:
    """Return the words of a kind in a form that depends neither on the order of a pair nor on plurals.

    Baselines of earlier versions may contain any form.
    """
    says = _SINGLE.sub(lambda found: plural_of(found[0]), says)
    says = _ONE_WAS_REFUSED.sub("were refused or answered, and not so in", says)
    return _ONE_SIDE_HAS_MORE.sub("is missing or too much: # instead of the #", says)


def without_quoted(text: str) -> str:
    """Return the text with `'…'` in place of each quoted text. An unclosed quote stays."""
    parts: list[str] = []
    end = 0
    unclosed: set[str] = set()
    for found in _QUOTE.finditer(text):
        quote = found[0]
        if found.start() < end or quote in unclosed:
            continue
        quoted = _QUOTED_UP_TO[quote](text, found.end())
        if quoted is None:
            # Every later quotation mark of this kind is escaped, so no later text is closed.
            unclosed.add(quote)
            continue
        parts += (text[end : found.start()], "'…'")
        end = quoted.end()
    return "".join((*parts, text[end:]))


def _without_digits(found: re.Match[str]) -> str:
    """Return `#` for a word with digits, followed by the word's trailing punctuation."""
    word = found[0]
    if _DIGIT.search(word) is None:
        return word
    return "#" + word[len(word.rstrip(".+-")) :]


def _shape(value: Any) -> str:  # the value comes from a server, so its content is not quoted
    """Return a description of a value's type."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() | float():
            return "#"
        case str():
            return "a text"
        case dict():
            return "an object"
        case _:
            return "a list"


def kind_of(observation: Observation, judgement: Judgement) -> FailureKind:
    stream = judgement.run.by_exchange.get(observation.place.exchange)
    words = (
        observation.message or f"expected {_shape(observation.expected)}, found {_shape(observation.actual)}"
    )
    where = lasting_words(observation.place.pointer)
    failure = f"{where}: {lasting_words(words)}" if where else lasting_words(words)
    # The message may quote the server, and kinds are printed and written into baselines. So control
    # characters are removed.
    return FailureKind(stream.dialect if stream else "-", inert(failure))


def failure_kinds(judgement: Judgement) -> tuple[FailureKind, ...]:
    """Return the distinct kinds of a judgement's violations, sorted by dialect and words."""
    kinds = {kind_of(observation, judgement) for observation in judgement.violations}
    return tuple(sorted(kinds, key=lambda kind: (kind.dialect, kind.says)))
