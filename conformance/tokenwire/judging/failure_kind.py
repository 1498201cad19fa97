"""Kinds of failures: what stays the same of a violation from run to run, so that it can be known again.

Numbers, texts and lists of one run are taken out of the words; the dialect, the place in the event and the
words of the check stay.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from tokenwire.checks.evidence import Observation
from tokenwire.judging.judge import Judgement
from tokenwire.wire.inert import inert

_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_BRACKETED = re.compile(r"\[[^][]*\]|\{[^{}]*\}")
_WITH_DIGITS = re.compile(r"[\w.+-]*\d[\w.+-]*(?<![.+-])")
_REPEATED = re.compile(r"#(?:, #)+")
# "1 output id" and "4 output ids" are one kind: how many there are differs from run to run.
_SINGLE_ID = re.compile(r"(?<=# output )id\b")
_LETTERS_OF_A_FINGERPRINT = 12


@dataclass(frozen=True)
class FailureKind:
    """One way in which a requirement is violated in one scenario."""

    dialect: str
    """Name of the dialect; `-` where the violation lies in no single answer."""
    says: str
    """The place in the event and what is wrong there, without what differs from run to run."""

    @property
    def fingerprint(self) -> str:
        """The same for the same kind, and for no other."""
        both = f"{self.dialect}\n{self.says}".encode()
        return hashlib.sha256(both).hexdigest()[:_LETTERS_OF_A_FINGERPRINT]


def lasting_words(text: str) -> str:
    """The text without what differs from run to run: quoted texts, lists, words with digits, one or many."""
    text = _QUOTED.sub("'…'", " ".join(text.split()))
    before = ""
    # Lists hold lists: the inner ones are taken out first.
    while before != text:
        before, text = text, _BRACKETED.sub("…", text)
    return _SINGLE_ID.sub("ids", _REPEATED.sub("#, …", _WITH_DIGITS.sub("#", text)))


def _shape(value: Any) -> str:  # whatever stood on the wire
    """What a value is, without saying which."""
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


def _kind(observation: Observation, judgement: Judgement) -> FailureKind:
    stream = judgement.run.by_exchange.get(observation.place.exchange)
    words = (
        observation.message or f"expected {_shape(observation.expected)}, found {_shape(observation.actual)}"
    )
    where = lasting_words(observation.place.pointer)
    failure = f"{where}: {lasting_words(words)}" if where else lasting_words(words)
    # The words may quote the server, and kinds are printed and written into baselines.
    return FailureKind(stream.dialect if stream else "-", inert(failure))


def failure_kinds(judgement: Judgement) -> tuple[FailureKind, ...]:
    """The kinds of all violations of a judgement, each once, in the order of their words."""
    kinds = {_kind(observation, judgement) for observation in judgement.violations}
    return tuple(sorted(kinds, key=lambda kind: (kind.dialect, kind.says)))
