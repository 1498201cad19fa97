"""Constraints: which ids may come next, so that a text becomes a word of a schema, expression or grammar.

llguidance says so, one bit for each id. All constraints are written in its Lark, as a rule `word`; reasoning
may stand before it, and no end within that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from tokenwire_reference.core.tokenizer import Tokenizer, token_bytes
from tokenwire_reference.extras.channels.formats import END_THINK, END_TOOL_CALL, THINK, TOOL_CALL

CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag", "response_format", "structured_outputs")
"""What bodies call them."""
_AS_WRITTEN: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as Python writes it: white space without end would be a beginning for ever."""


@dataclass(frozen=True)
class Channelled:
    """What a chat says of the constraint beside its body."""

    calls: str | None = None
    """The grammar of the calls that have to be, or of text with calls in it."""
    begun: bool | None = None
    """Whether the prompt has begun the reasoning, and the answer only may; None where there is none."""


PLAIN = Channelled()
"""Of a text without channels."""


@dataclass(frozen=True)
class Grammar:
    """A constraint, ready for requests."""

    source: str
    tokens: LLTokenizer = field(compare=False)

    def start(self) -> _Matcher:
        """For one request."""
        return _Matcher(LLMatcher(self.tokens, self.source, log_level=0))


class _Matcher:
    """Follows the output of one request."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._read = 0

    def allowed(self, output_ids: Sequence[int], drafts: Sequence[int] = ()) -> bytes:
        """A bit for each id that may follow an output, and drafts behind it; all where these are wrong."""
        self._matcher.consume_tokens(list(output_ids[self._read :]))
        self._read = len(output_ids)
        matcher = self._matcher
        if drafts:
            matcher = matcher.deep_copy()
            matcher.consume_tokens(list(drafts))
        mask = matcher.compute_bitmask()
        return b"\xff" * len(mask) if drafts and matcher.is_error() else mask


def compile_grammar(
    word: str, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int], begun: bool | None
) -> Grammar:
    """A grammar with the rule `word`. Raises ValueError for one that is none, or cannot be kept."""
    thoughts = {None: "", True: "think ", False: f'("{THINK}" think)? '}[begun]
    think = "" if begun is None else f"think[lazy]: /(?s:.*){END_THINK.replace('/', chr(92) + '/')}/\n"
    source = LLMatcher.grammar_from_lark(f"start: {thoughts}word\n{think}{word}\n")
    tokens = _tokens(tokenizer, vocab_size, tuple(sorted(eos_token_ids)))
    failed, words = LLMatcher.validate_grammar_with_warnings(source, tokens)
    if failed or words:
        raise ValueError(words[0])
    return Grammar(source, tokens)


class _Vocabulary:
    """A tokenizer as llguidance takes it. Markers of channels are text like any other."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.eos_token_id = eos_token_ids[0]
        self.special_token_ids = [*{*tokenizer.all_special_ids, *eos_token_ids}]
        self._tokenizer = tokenizer
        self.tokens = [
            token_bytes(tokenizer, token_id) if token_id < len(tokenizer) else b""
            for token_id in range(vocab_size)
        ]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


@cache
def _tokens(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> LLTokenizer:
    vocabulary = TokenizerWrapper(_Vocabulary(tokenizer, vocab_size, eos_token_ids))
    return LLTokenizer(vocabulary, vocab_size, list(eos_token_ids))


def grammar_of(given: Mapping[str, Any]) -> str | None:
    """The constraint that a body asks for, in the words of llguidance; None where it asks for none.

    Raises ValueError for one that is none, and for several.
    """
    constraints = {name: given[name] for name in CONSTRAINTS if given.get(name) is not None}
    outputs = constraints.pop("structured_outputs", {"": None})
    if not isinstance(outputs, dict) or not outputs:
        raise ValueError(f"structured_outputs is {outputs!r}; it names one constraint")
    constraints |= {name: value for name, value in outputs.items() if value not in (None, False)}
    if constraints.get("response_format", {}) == {"type": "text"}:
        del constraints["response_format"]
    if len(constraints) > 1:
        raise ValueError(f"{' and '.join(constraints)} are given; one text can be a word of one of them only")
    return next((_source(name, value) for name, value in constraints.items()), None)


def _source(name: str, value: Any) -> str:
    match name, value:
        case ("response_format", {"type": "json_schema", "json_schema": {"schema": schema}}):
            return _of_schema(schema)
        case ("response_format", {"type": "json_schema", "schema": schema}):
            return _of_schema(schema)
        case ("response_format", {"type": "json_object"}) | ("json_object", True):
            return _of_schema({"type": "object"})
        case ("json_schema" | "json", dict() | str() as schema):
            return _of_schema(_parsed(schema) if isinstance(schema, str) else schema)
        case ("regex", str(pattern)):
            return f"word: /{regex_to_lark(pattern)}/"
        case ("choice", [_, *_]):
            return "word: " + " | ".join(map(json.dumps, value))
        case ("ebnf" | "grammar", str(rules)):
            return re.sub(r"^start:", "word:", _lark(rules), flags=re.MULTILINE)
    raise ValueError(f"{name} is {str(value)[:80]!r}, and the reference engine keeps no such constraint")


def _parsed(schema: str) -> Any:
    try:
        return json.loads(schema)
    except RecursionError as error:
        raise ValueError("the schema is nested too deep") from error


def _of_schema(schema: Any) -> str:
    if not isinstance(schema, dict):
        raise ValueError(f"the schema is {schema!r}; give an object")  # noqa: TRY004 - a value from the wire
    return f"word: %json {json.dumps(schema | {'x-guidance': _AS_WRITTEN})}"


def _lark(rules: str) -> str:
    try:
        return gbnf_to_lark(rules) if "::=" in rules else rules
    except Exception as error:  # of this very type, where a rule is not there
        raise ValueError(f"the grammar is none: {error}") from error


def calls_of(tools: Sequence[Mapping[str, Any]], *, alone: bool, demanded: bool) -> str:
    """Calls in the form of Hermes: at least one where they are `demanded`, else free text with such in it."""
    calls = []
    for tool in tools:
        head = f'\n{{"name": {json.dumps(tool["function"]["name"])}, "arguments": '
        tail = json.dumps(f"}}\n{END_TOOL_CALL}")
        calls.append(f"{json.dumps(head)} %json {json.dumps(_arguments(tool))} {tail}")
    more = "" if alone else f' ("\\n" "{TOOL_CALL}" call)*'
    free = (
        f"(lead call)* TEXT\nlead[lazy]: /(?s:.*){TOOL_CALL}/\nTEXT: /(?s:.*)/ & ~/(?s:.*){TOOL_CALL}(?s:.*)/"
    )
    word = f'"{TOOL_CALL}" call{more}' if demanded else free
    return f"word: {word}\ncall: {' | '.join(calls)}"


def _arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments: any object, where nothing is promised of them."""
    function = tool["function"]
    schema = (function.get("parameters") or {}) if function.get("strict") else {}
    return {"type": "object", **schema, "x-guidance": _AS_WRITTEN}
