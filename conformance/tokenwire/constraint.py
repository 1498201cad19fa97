"""Constraints of a request: formal languages to which the generated text must belong.

An incomplete text is acceptable if a continuation of it belongs to the language. A capture may contain
malicious schemas and expressions. Therefore their size is limited, expressions are matched in linear time,
and schemas are never fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import jiter
import jsonschema_rs

from tokenwire.wire import strict_json

try:
    import llguidance
    from llguidance.gbnf_to_lark import gbnf_to_lark
except ImportError:  # llguidance is an optional dependency
    llguidance = None  # type: ignore[assignment]

_LARGEST = 1 << 16
"""The maximum number of characters in the definition of a language."""
_MOST_ENDS = 100
"""The maximum number of possible ends of a tag that are tried."""
_RULE = re.compile(r"^[^\S\n]*+([A-Za-z_][\w-]*+)\s*+::=", re.MULTILINE)
_TERMINAL = re.compile(r'"(?:\\.|[^"\\])*+"?|\[(?:\\.|[^]\\])*+\]?|\{[\d,\s]*+\}|#.*|/(?:\\.|[^/\\])*+/?')
"""Matches a terminal of a grammar. An unclosed terminal matches up to the end of the rules, so that the
parser rejects it.
"""
_TOLD_AT_ONCE = frozenset({"type", "additionalProperties"})
"""Keywords of JSON Schema.

If a text violates one of these keywords, no continuation of the text satisfies the schema.
"""
_NUMBERS = frozenset({int, float})
_NUMBER_TYPES = frozenset({"integer", "number"})


class UntoldError(Exception):
    """The suite cannot decide if a text belongs to a language. The message is the reason, as a clause."""


class NoLanguageError(ValueError):
    """The value in the request does not define a language. The message is a clause whose subject is the
    request field.
    """


class _Language(Protocol):
    def has(self, text: str) -> bool:
        """True if a text belongs to the language."""

    def begins(self, text: str) -> bool:
        """True if a text can be continued to a text that belongs to the language."""


@dataclass(frozen=True)
class Constraint:
    """A language to which the text of a choice must belong."""

    wire_name: str
    kind: str
    value: Any
    """The definition of the language, such as a schema or a regular expression."""

    @property
    def fault(self) -> str:
        """The reason why the definition is invalid.

        Empty if the definition is valid, or if the suite cannot decide this.
        """
        try:
            self._language()
        except NoLanguageError as error:
            return f"{self.wire_name} {error}"
        except UntoldError:
            pass
        return ""

    def admits(self, text: str, *, cut: bool = False) -> bool:
        """True if a text belongs to the language.

        With `cut`, the beginning of such a text is sufficient. Raises UntoldError.
        """
        try:
            language = self._language()
        except NoLanguageError as error:
            raise UntoldError(f"{self.wire_name} {error}") from error
        # JSON may contain half of a surrogate pair, which is not a character.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return language.begins(text.rstrip("\ufffd")) if cut else language.has(text)

    def _language(self) -> _Language:
        source = json.dumps(self.value, sort_keys=True)
        # A capture may contain a malicious definition.
        if len(source) > _LARGEST:
            raise UntoldError(f"{self.wire_name} has more than {_LARGEST} characters")
        return _language(self.kind, source)


@dataclass(frozen=True)
class ToolRule:
    """The tools that a choice may call, and the rules for calling them."""

    offered: tuple[str, ...] = ()
    demand: str = "auto"
    """The value of tool_choice: `none`, `auto`, or `required` (at least one call). Other values have no
    effect.
    """
    name: str = ""
    """The name of the tool that must be called. Empty for any tool."""
    alone: bool = False
    """True if at most one call is allowed."""
    parameters: Mapping[str, Constraint] = field(default_factory=dict)
    """The constraint on the arguments of each tool, by the tool's name."""
    strict: frozenset[str] = frozenset()
    """The tools whose arguments the server has promised to restrict to the schema."""

    @property
    def faults(self) -> Iterator[str]:
        """The reasons why the rules cannot be followed, as clauses."""
        if self.demand not in ("none", "auto", "required"):
            yield f"tool_choice has the unknown value {self.demand!r}"
        if self.demand == "required" and not (self.name in self.offered if self.name else self.offered):
            yield f"tool_choice requires {self.name or 'a call'}, which no tool offers,"
        for name, schema in self.parameters.items():
            if schema.fault and (self.demand == "required" or name in self.strict):
                yield schema.fault


class _Json:
    """The JSON texts that satisfy a schema."""

    def __init__(self, schema: Any) -> None:
        self._validator = _validator(_parsed(schema))

    def has(self, text: str) -> bool:
        try:
            return bool(self._validator.is_valid(strict_json.loads(text)))
        except ValueError:
            return False

    def begins(self, text: str) -> bool:
        text = text.strip()
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except RecursionError as error:
            raise UntoldError("the text is nested too deeply") from error
        except ValueError:
            pass
        else:
            if type(value) not in _NUMBERS:
                return end == len(text) and self.has(text)
            return end == len(text) and not any(map(_is_final, self._validator.iter_errors(value)))
        try:
            value = jiter.from_json(text.encode(), partial_mode="trailing-strings", allow_inf_nan=False)
        except ValueError as error:
            # jiter reports EOF for text that ends too early. Such text may continue to valid JSON.
            return str(error).startswith("EOF")
        path, open_ = [], value
        while isinstance(open_, dict | list) and open_:
            path.append([*open_][-1] if isinstance(open_, dict) else len(open_) - 1)
            open_ = open_[path[-1]]
        for wrong in self._validator.iter_errors(value):
            closed = [*wrong.instance_path] != path[: len(wrong.instance_path)]
            if closed or _is_final(wrong):
                return False
        return True


def _is_final(wrong: jsonschema_rs.ValidationError) -> bool:
    """True if the error remains, whatever text follows."""
    keyword = wrong.schema_path[-1] if wrong.schema_path else ""
    if keyword == "type" and type(wrong.instance) in _NUMBERS:
        # Digits may continue a number: 1 to 12, 1.5 to 1.5e1. But a number never becomes another type.
        return _NUMBER_TYPES.isdisjoint(wrong.kind.as_dict()["types"])
    return keyword in _TOLD_AT_ONCE


class _Regex:
    """The texts that a regular expression matches in full."""

    def __init__(self, pattern: Any) -> None:
        if not isinstance(pattern, str):
            raise NoLanguageError("is not a string")
        # The validator raises NoLanguageError for an invalid pattern. The engine below rejects some valid
        # patterns as well, so its errors do not decide this.
        _validator({"pattern": pattern})
        self._grammar = ("regex", pattern)
        try:
            whole = {"type": "string", "pattern": f"^(?:{pattern})$"}
            self._whole = jsonschema_rs.Draft202012Validator(
                whole, pattern_options=jsonschema_rs.RegexOptions()
            )
        except ValueError as error:
            raise UntoldError(
                "regular expressions with look-around or back-references are not supported"
            ) from error

    def has(self, text: str) -> bool:
        return self._whole.is_valid(text)

    def begins(self, text: str) -> bool:
        return _matched(*self._grammar, text)[0]


class _Grammar:
    """The texts that a grammar derives from its rule `root`."""

    def __init__(self, rules: Any) -> None:
        if not isinstance(rules, str):
            raise NoLanguageError("is not a string")
        self._rules = rules
        if defined := set(_RULE.findall(rules)):
            used = set(re.findall(r"[A-Za-z_][\w-]*", _TERMINAL.sub(" ", rules)))
            if unknown := sorted((used | {"root"}) - defined):
                raise NoLanguageError(f"has no rule {unknown[0]!r}")

    def has(self, text: str) -> bool:
        return _matched("grammar", self._rules, text)[1]

    def begins(self, text: str) -> bool:
        return _matched("grammar", self._rules, text)[0]


class _Choice:
    """A finite list of texts."""

    def __init__(self, texts: Any) -> None:
        if not isinstance(texts, list) or not texts:
            raise NoLanguageError("is not a list with at least one text")
        self._texts = tuple(map(str, texts))

    def has(self, text: str) -> bool:
        return text in self._texts

    def begins(self, text: str) -> bool:
        return any(word.startswith(text) for word in self._texts)


def _parsed(value: Any) -> Any:
    """Return a value, or the parsed value if it is JSON text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except RecursionError as error:
        raise UntoldError("the value is nested too deeply") from error
    except ValueError as error:
        raise NoLanguageError("is not JSON") from error


@dataclass(frozen=True)
class _Tag:
    """A delimited part of a text: the text before it, the language of its content, and the text after it."""

    begin: str
    content: _Language
    end: str

    def closed(self, text: str, place: int) -> int | None:
        """Return the position after the tag that begins at `place`. None if there is no complete tag."""
        first = start = place + len(self.begin)
        if not text.startswith(self.begin, place):
            return None
        for _ in range(_MOST_ENDS):
            end = text.find(self.end, start)
            if end < 0:
                return None
            if self.content.has(text[first:end]):
                return end + len(self.end)
            start = end + 1
        raise UntoldError(f"a tag has more than {_MOST_ENDS} ends")

    def open(self, text: str, place: int) -> bool:
        """True if the text at `place` may continue to a complete tag."""
        if not text.startswith(self.begin, place):
            return self.begin.startswith(text[place:])
        inner = text[place + len(self.begin) :]
        # The text may end within the closing delimiter.
        begun = (self.end[:size] for size in range(1, len(self.end)))
        return self.content.begins(inner) or any(
            self.content.has(inner.removesuffix(end)) for end in begun if inner.endswith(end)
        )


class _Tags:
    """The texts that consist of a single tag, or of free text in which each trigger begins a tag."""

    def __init__(self, given: Any) -> None:
        given = _parsed(given)
        if not isinstance(given, dict) or not given.keys() & {"structures", "format"}:
            raise NoLanguageError("has neither structures nor a format")
        self._begins: re.Pattern[str] | None = None
        match given:
            case {"structures": [*tags], "triggers": [_, *_] as triggers} if {*map(type, triggers)} == {
                str
            } and all(triggers):
                self._tags = list(map(_tag, tags))
                self._begins = re.compile("|".join(map(re.escape, triggers)))
            case {"format": {"type": "tag"} as tag}:
                self._tags = [_tag(tag)]
            case _:
                raise UntoldError("the value has neither structures with triggers, nor a format of type tag")

    def has(self, text: str) -> bool:
        return self._matched(text) == (True, True)

    def begins(self, text: str) -> bool:
        return self._matched(text)[0]

    def _matched(self, text: str) -> tuple[bool, bool]:
        """Return two flags.

        The first is True if the text is the beginning of a member of the language, the second if the text is
        a member.
        """
        if self._begins is None:
            end = self._tags[0].closed(text, 0)
            return end == len(text) or (end is None and self._tags[0].open(text, 0)), end == len(text)
        place, begun = 0, False
        while found := self._begins.search(text, place):
            place, begun = found.start(), True
            ends = [end for tag in self._tags if (end := tag.closed(text, place)) is not None]
            if not ends:
                return any(tag.open(text, place) for tag in self._tags), False
            place = max(ends)
        if not begun:
            raise UntoldError("the text contains no tag")
        return True, True


def _tag(tag: Any) -> _Tag:
    """Parse the definition of a tag. Raises UntoldError for an unknown form."""
    match tag:
        case {"begin": str(begin), "schema": schema, "end": str(end)} if end:
            return _Tag(begin, _Json(schema), end)
        case {"begin": str(begin), "content": {"type": str(kind), **value}, "end": str(end)} if end:
            place = {"json_schema": kind, "regex": "pattern", "grammar": kind}.get(kind, "")
            if place in value:
                return _Tag(begin, _LANGUAGES[kind](value[place]), end)
    raise UntoldError("a tag without a begin, an end, and a schema, regex or grammar is not supported")


_LANGUAGES: Mapping[str, Callable[[Any], _Language]] = {
    "json_object": lambda _: _Json({"type": "object"}),
    "json_schema": _Json,
    "regex": _Regex,
    "grammar": _Grammar,
    "choice": _Choice,
    "structural_tag": _Tags,
}
"""The types of constraints, each with the function that builds its language."""


@lru_cache(maxsize=256)
def _language(kind: str, source: str) -> _Language:
    if kind not in _LANGUAGES:
        raise NoLanguageError(f"is of the unknown type {kind!r}")
    return _LANGUAGES[kind](json.loads(source))


def _fetch(name: str) -> Any:
    raise ValueError(f"{name} is not fetched")


def _validator(schema: Any) -> Any:
    """Build the validator of a schema.

    Raises NoLanguageError if the value is not a schema, and UntoldError if the schema is not supported.
    """
    try:
        return jsonschema_rs.validator_for(
            schema, retriever=_fetch, pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000)
        )
    except jsonschema_rs.ValidationError as error:
        if "is not fetched" in error.message:
            raise UntoldError("the schema refers to another address, which is not fetched") from error
        raise NoLanguageError(f"is not a schema or expression: {error.message[:80]}") from error
    except (ValueError, TypeError) as error:
        raise UntoldError(f"the schema is not supported: {str(error)[:80]}") from error


def _matched(kind: str, source: str, text: str) -> tuple[bool, bool]:
    """Return two flags.

    The first is True if the text is the beginning of a text of the grammar, the second if the whole text
    belongs to the grammar. Raises UntoldError.
    """
    if llguidance is None:
        raise UntoldError("llguidance is not installed: pip install 'tokenwire[constraints]'")
    # Matching changes a matcher, so a copy of the cached matcher is used.
    matcher = _matcher(kind, source).deep_copy()
    data = list(text.encode())
    begun = matcher.try_consume_tokens(data) == len(data)
    return begun, begun and matcher.is_accepting()


@lru_cache(maxsize=64)
def _matcher(kind: str, source: str) -> Any:
    matchers = llguidance.LLMatcher
    try:
        if kind == "regex":
            grammar = matchers.grammar_from_regex(source)
        else:
            grammar = matchers.grammar_from_lark(_lark(source))
    except ValueError as error:
        raise UntoldError(f"the grammar is not supported: {error}") from error
    matcher = matchers(_bytes(), grammar, log_level=0)
    if matcher.is_error():
        raise UntoldError(f"the grammar is not supported: {matcher.get_error()[:80]}")
    return matcher


def _lark(rules: str) -> str:
    try:
        return gbnf_to_lark(rules) if _RULE.search(rules) else rules
    except Exception as error:  # the library raises Exception itself if a rule is missing
        raise ValueError(str(error)) from error


@lru_cache(maxsize=1)
def _bytes() -> Any:
    """Return a tokenizer that has one token for each byte."""
    return llguidance.LLTokenizer("byte")
