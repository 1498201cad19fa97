"""Kinds of failures: the constant part of a violation, by which it is recognized in later runs.

Numbers, texts and lists of one run are removed from the words; the dialect, the place in the event and the
words of the check stay.
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
"""Match the rest of a quoted text, by its quote."""
_BRACKETED = re.compile(r"\[[^][]*\]|\{[^{}]*\}")
_WORD = re.compile(r"[\w.+-]++")
_DIGIT = re.compile(r"\d")
_REPEATED = re.compile(r"#(?:, #)+")
# "1 output id" and "4 output ids" are one kind: how many there are differs from run to run.
_SINGLE = re.compile(
    r"(?<=# )(?:output )?(?:byte|character|choice|entry|event|exchange|field|id|item|number|row|token)\b"
)
# A race loses an entry on one side or on the other: which of them lacks it is not part of the kind.
_ONE_SIDE_HAS_MORE = re.compile(r"is (?:missing|too much): # instead of the #")
# Of two requests that must be decided alike, either may be the one that the other is held against.
_ONE_WAS_REFUSED = re.compile(r"were (?:refused, and answered|answered, and refused) in")
_LETTERS_OF_A_FINGERPRINT = 12
_DEEPEST_LIST = 50
"""The greatest depth of nested lists that are removed."""


@dataclass(frozen=True)
class FailureKind:
    """A way in which a requirement is violated in one scenario."""

    dialect: str
    """Name of the dialect; `-` if the violation is not in a single answer."""
    says: str
    """The place in the event and the error there, without parts that vary between runs."""

    @property
    def words(self) -> str:
        """The error without its place, which each dialect names in its own way."""
        place, separator, words = self.says.partition(": ")
        return words if separator and place.startswith("/") else self.says

    @property
    def fingerprint(self) -> str:
        """A fingerprint that is equal exactly for equal kinds."""
        both = f"{self.dialect}\n{self.says}".encode()
        return hashlib.sha256(both).hexdigest()[:_LETTERS_OF_A_FINGERPRINT]


def lasting_words(text: str) -> str:
    """Return a text without parts that vary between runs: quoted texts, lists, words with digits, plurals."""
    text = without_quoted(" ".join(text.split()))
    # Lists hold lists: the inner ones are taken out first.
    for _ in range(_DEEPEST_LIST):
        before, text = text, _BRACKETED.sub("…", text)
        if before == text:
            break
    return either_way(_REPEATED.sub("#, …", _WORD.sub(_without_digits, text)))


def either_way(says: str) -> str:
    """Return the words of a kind without the difference between the sides of a pair, and between one and
    several, as in baselines of earlier versions.
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
            # The later quotes of this kind were seen as escaped, and are not closed either.
            unclosed.add(quote)
            continue
        parts += (text[end : found.start()], "'…'")
        end = quoted.end()
    return "".join((*parts, text[end:]))


def _without_digits(found: re.Match[str]) -> str:
    """Return `#` for a word with digits, with its trailing punctuation."""
    word = found[0]
    if _DIGIT.search(word) is None:
        return word
    return "#" + word[len(word.rstrip(".+-")) :]


def _shape(value: Any) -> str:  # an untrusted value
    """Return the type of a value, without the value."""
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
    # The words may quote the server, and kinds are printed and written into baselines.
    return FailureKind(stream.dialect if stream else "-", inert(failure))


def failure_kinds(judgement: Judgement) -> tuple[FailureKind, ...]:
    """Return the distinct kinds of a judgement's violations, sorted by their words."""
    kinds = {kind_of(observation, judgement) for observation in judgement.violations}
    return tuple(sorted(kinds, key=lambda kind: (kind.dialect, kind.says)))
