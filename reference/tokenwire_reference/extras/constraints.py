"""Computes which ids may come next, so that a text fits a JSON schema, a regular expression or a grammar.

llguidance computes one bit for each id. All constraints are written in llguidance's dialect of Lark, as a
rule `word`. Reasoning may come before `word`, and the text must not end within the reasoning.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from llguidance import LLMatcher, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from tokenwire_reference.core.request import SequenceError
from tokenwire_reference.core.tokenizer import Tokenizer, token_bytes
from tokenwire_reference.extras.channels.formats import END_THINK, END_TOOL_CALL, THINK, TOOL_CALL
from tokenwire_reference.extras.grammar_trial import make_tokens, started

MOST_CHARACTERS = 1 << 18
"""The maximum number of characters in a grammar."""
MOST_MASK_SECONDS = 0.25
"""The maximum CPU time for a mask, in seconds. llguidance's own limits usually end a mask within some 0.02 s,
but they do not count all of its work.
"""

CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag", "response_format", "structured_outputs")
"""The names of the body fields that contain a constraint."""
_AS_WRITTEN: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The settings for JSON: white space as in Python's `json.dumps`, because an answer with unlimited white
space might never end.
"""


@dataclass(frozen=True)
class Channelled:
    """Settings of a chat request that affect its constraint."""

    calls: str | None = None
    """The grammar of required tool calls, or of text with optional tool calls; None without tools."""
    begun: bool | None = None
    """True if the prompt has begun the reasoning, False if the answer may begin it; None
    without reasoning.
    """
    budget: int | None = None
    """The maximum number of reasoning tokens; None for any number."""


PLAIN = Channelled()
"""The settings of a text without channels."""


class Grammar:
    """The constraint of one call's requests: a grammar rule `word`, with optional reasoning before it."""

    def __init__(self, field: str, word: str, begun: bool | None) -> None:
        """Initialize.

        `field` is the name of the constraint in the body. Raises ValueError if the grammar is too long.
        """
        if len(word) > MOST_CHARACTERS:
            raise ValueError(f"{field} has {len(word)} characters of grammar, and may have {MOST_CHARACTERS}")
        self.field = field
        thoughts = {None: "", True: "think ", False: f'("{THINK}" think)? '}[begun]
        think = "" if begun is None else f"think[lazy]: /(?s:.*){END_THINK.replace('/', chr(92) + '/')}/\n"
        self.source = LLMatcher.grammar_from_lark(f"start: {thoughts}word\n{think}{word}\n")
        self._compiled: Compiled | None = None

    def use(self, compiled: Compiled) -> None:
        """Set the compiled grammar, from which requests start."""
        self._compiled = compiled

    def start(self) -> _Matcher:
        """Return a matcher for one request, which takes microseconds."""
        assert self._compiled is not None, "requests reach an engine with what they need"
        return _Matcher(self.field, self._compiled.matcher.deep_copy())


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled grammar. All requests with the same grammar share one object."""

    matcher: LLMatcher
    bytes: int


class ConstraintError(SequenceError):
    """The constraint of one request cannot be followed any more."""

    status_code = 400


class _Matcher:
    """Follows the output of one request."""

    def __init__(self, field: str, matcher: LLMatcher) -> None:
        self._field = field
        self._matcher = matcher
        self._read = 0

    def allowed(self, output_ids: Sequence[int], drafts: Sequence[int] = ()) -> bytes:
        """Return a bit for each id that may follow an output and further drafts; all ids if the drafts are
        wrong.

        Raises ConstraintError if a mask exceeds its cost limit.
        """
        began = time.thread_time()
        self._matcher.consume_tokens(list(output_ids[self._read :]))
        self._read = len(output_ids)
        matcher = self._matcher
        if drafts:
            matcher = matcher.deep_copy()
            matcher.consume_tokens(list(drafts))
        mask = matcher.compute_bitmask()
        if self._matcher.is_error():
            why = self._matcher.get_error().partition("\n")[0]
            raise ConstraintError(f"{self._field} cannot be followed beyond {self._read} tokens: {why}")
        if time.thread_time() - began > MOST_MASK_SECONDS:
            raise ConstraintError(
                f"{self._field} cannot be followed beyond {self._read} tokens: a mask took more than "
                f"{MOST_MASK_SECONDS:g} s of CPU time"
            )
        return b"\xff" * len(mask) if drafts and matcher.is_error() else mask


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model in llguidance's form. Markers of channels are text."""

    tokens: Sequence[bytes]
    eos: Sequence[int]
    special: Sequence[int]

    def for_trials(self, seconds: float, most_bytes: int) -> bytes:
        """Return the first line for a process of `extras.grammar_trial`.

        It contains the tokens and the limits of a trial.
        """
        tokens = [token.decode("latin-1") for token in self.tokens]
        settings = {"tokens": tokens, "eos": self.eos, "special": self.special}
        return json.dumps({**settings, "seconds": seconds, "bytes": most_bytes}).encode()


@dataclass(frozen=True)
class OfModel:
    """Compiles grammars for one model. For a large vocabulary, the first use takes seconds."""

    tokenizer: Tokenizer
    vocab_size: int
    eos_token_ids: frozenset[int]

    @property
    def vocabulary(self) -> Vocabulary:
        return _vocabulary(self)

    def compile(self, grammar: Grammar, size: int) -> Compiled:
        """Compile a grammar that a trial process has already compiled; `size` is the size that it measured.

        Other threads can run meanwhile.
        """
        return Compiled(started(_tokens(self), grammar.source), size)


@cache
def _vocabulary(model: OfModel) -> Vocabulary:
    text = model.tokenizer
    tokens = [
        token_bytes(text, token_id) if token_id < len(text) else b"" for token_id in range(model.vocab_size)
    ]
    special = [*{*text.all_special_ids, *model.eos_token_ids}]
    return Vocabulary(tokens, sorted(model.eos_token_ids), special)


@cache
def _tokens(model: OfModel) -> LLTokenizer:
    vocabulary = _vocabulary(model)
    encode = partial(model.tokenizer.encode, add_special_tokens=False)
    return make_tokens(vocabulary.tokens, vocabulary.eos, vocabulary.special, encode)


def grammar_of(given: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the constraint of a body, with its field name and its rule for llguidance; None without a
    constraint. Raises ValueError for an invalid constraint, and for more than one constraint.
    """
    constraints = {name: given[name] for name in CONSTRAINTS if given.get(name) is not None}
    outputs = constraints.pop("structured_outputs", {"": None})
    if not isinstance(outputs, dict) or not outputs:
        raise ValueError(f"structured_outputs is {outputs!r}; give exactly one constraint")
    constraints |= {name: value for name, value in outputs.items() if value not in (None, False)}
    if constraints.get("response_format", {}) == {"type": "text"}:
        del constraints["response_format"]
    if len(constraints) > 1:
        raise ValueError(f"{' and '.join(constraints)} are given; send only one of them")
    return next(((name, _source(name, value)) for name, value in constraints.items()), None)


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
    raise ValueError(
        f"{name} is {str(value)[:80]!r}, and the reference engine does not support this constraint"
    )


def _parsed(schema: str) -> Any:
    try:
        return json.loads(schema)
    except RecursionError as error:
        raise ValueError("the schema is nested too deep") from error


def _of_schema(schema: Any) -> str:
    if not isinstance(schema, dict):
        raise ValueError(f"the schema is {schema!r}; give an object")  # noqa: TRY004 - a value from the wire
    try:
        return f"word: %json {json.dumps(schema | {'x-guidance': _AS_WRITTEN})}"
    except RecursionError as error:
        raise ValueError("the schema is nested too deep") from error


def _lark(rules: str) -> str:
    try:
        return gbnf_to_lark(rules) if "::=" in rules else rules
    except Exception as error:  # Lark raises a plain Exception if a rule is missing.
        raise ValueError(f"the grammar cannot be parsed: {error}") from error


def calls_of(tools: Sequence[Mapping[str, Any]], *, alone: bool, demanded: bool) -> str:
    """Return a grammar of calls in Hermes' form: at least one call if `demanded`, otherwise free text with
    optional calls.
    """
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
    """Return the schema of a tool's arguments; any object if the tool is not strict."""
    function = tool["function"]
    schema = (function.get("parameters") or {}) if function.get("strict") else {}
    return {"type": "object", **schema, "x-guidance": _AS_WRITTEN}
