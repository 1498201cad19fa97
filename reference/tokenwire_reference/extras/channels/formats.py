"""Formats of public models for reasoning and tool calls in their text.

White space next to a marker belongs to the marker. A call opens as soon as its name and the first brace of
its arguments are known, and its arguments are passed on as the model writes them. If the text turns out
earlier not to be a call, the text and its markers are content. Later errors and cuts stay in the arguments:
the parser does not close quotes or brackets that the model left open. A call within reasoning is treated as
reasoning.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Collection, Mapping
from functools import partial

import orjson

from tokenwire_reference.extras.channels.parser import (
    Channel,
    ChannelParser,
    Format,
    NotACallError,
    Parse,
    is_json,
)

Tools = Mapping[str, Mapping[str, Collection[str]]]
"""The JSON types of each parameter by function and parameter name; empty for any type."""

THINK, END_THINK = "<think>", "</think>"
TOOL_CALL, END_TOOL_CALL = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"


def channel_format(
    tool_call_parser: str | None,
    reasoning_parser: str | None,
    tools: Tools,
    *,
    begins_thinking: bool = True,
    separate_reasoning: bool = True,
) -> Format | None:
    """Return the format of an answer, by the names in `TOOL_CALLS` and `REASONING`; None if all text is
    content.

    Without `begins_thinking`, reasoning has to begin with its marker in every format. Without
    `separate_reasoning`, reasoning and its markers are content.
    """
    calls = TOOL_CALLS.get(tool_call_parser or "")

    def content(parser: ChannelParser) -> Parse[None]:
        return _content(parser) if calls is None else calls(parser, tools)

    if reasoning_parser is not None:
        begun = REASONING[reasoning_parser] and begins_thinking
        return partial(_thinking, content=content, begun=begun, separate=separate_reasoning)
    return None if calls is None else content


def _content(parser: ChannelParser) -> Parse[None]:
    yield from parser.text_until((), partial(parser.give, Channel.CONTENT))


def _thinking(parser: ChannelParser, *, content: Format, begun: bool, separate: bool) -> Parse[None]:
    """Parse `<think>…</think>` at the beginning of an answer; `begun`: the prompt ended with the first
    marker.
    """
    try:
        yield from parser.skip_space()
        yield from parser.expect(THINK)
    except NotACallError:
        thoughts = _thoughts(parser, 0, content, separate=separate)
        yield from parser.read_again(thoughts if begun else content(parser))
        return
    yield from _thoughts(parser, parser.position, content, separate=separate)


def _thoughts(parser: ChannelParser, begin: int, content: Format, *, separate: bool) -> Parse[None]:
    """Parse reasoning from the current position on, and then the content after the reasoning."""
    give = partial(parser.give, Channel.REASONING if separate else Channel.CONTENT)
    parser.reasoning = (begin, None)
    if separate:
        yield from parser.skip_space()
    else:
        give(parser.markup)
    if (yield from parser.text_until((END_THINK,), give, trim=separate)):
        parser.reasoning = (begin, parser.position - len(END_THINK))
        if separate:
            yield from parser.skip_space()
        else:
            give(parser.markup)
        yield from content(parser)


def hermes(parser: ChannelParser, tools: Tools) -> Parse[None]:
    """Parse `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""
    del tools
    while (yield from parser.text_until((TOOL_CALL,), partial(parser.give, Channel.CONTENT))):
        yield from _call(parser, _json_call(parser), END_TOOL_CALL)


def qwen3_xml(parser: ChannelParser, tools: Tools) -> Parse[None]:
    """Parse `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`: Qwen3-Coder."""
    while (yield from parser.text_until((TOOL_CALL,), partial(parser.give, Channel.CONTENT))):
        yield from _call(parser, _xml_call(parser, tools), END_TOOL_CALL)


def llama3(parser: ChannelParser, tools: Tools) -> Parse[None]:
    """Parse `{"name": …, "parameters": {…}}` at the beginning, or after `<|python_tag|>`.

    Calls are separated by `;`.
    """
    del tools
    first: tuple[str, ...] = ("{",)
    give = partial(parser.give, Channel.CONTENT)
    while found := (yield from parser.text_until((PYTHON_TAG,), give, first=first)):
        first = ()
        yield from _call(parser, _json_call(parser, brace=found != "{"), "")
        while parser.here == ";":
            yield from parser.skip()
            yield from _call(parser, _json_call(parser), "")


def pythonic(parser: ChannelParser, tools: Tools) -> Parse[None]:
    """Parse `[get_weather(city="Paris"), …]` at the beginning of an answer: Llama 3.2, Llama 4.

    The arguments can be converted to JSON only when they are complete, so the whole list is held back until
    its end.
    """
    del tools
    give = partial(parser.give, Channel.CONTENT)
    if (yield from parser.text_until((), give, first=("[",))):
        try:
            for name, arguments in (yield from _python_calls(parser)):
                parser.open_call(name)
                parser.argue(arguments)
            yield from parser.skip_space()
        except NotACallError:
            give(parser.markup)
        yield from parser.text_until((), give)


TOOL_CALLS: Mapping[str, Callable[[ChannelParser, Tools], Parse[None]]] = {
    "hermes": hermes,
    "qwen3_xml": qwen3_xml,
    "llama3": llama3,
    "pythonic": pythonic,
}
REASONING = {"qwen3": False, "deepseek-r1": True}
"""The reasoning formats.

The value is True if the prompt contains the marker that begins the reasoning, so that the answer does not.
"""


def _call(parser: ChannelParser, body: Parse[None], close: str) -> Parse[None]:
    """Parse one call, and its closing marker if the format has one."""
    known = parser.calls
    try:
        yield from body
    except NotACallError:
        if parser.calls == known:
            parser.give(Channel.CONTENT, parser.markup)
        elif parser.here:
            parser.argue(parser.markup)
            yield from parser.text_until((close,) if close else (), parser.argue)
            yield from parser.skip_space()
        parser.markup = ""
        return
    parser.markup = ""
    try:
        yield from parser.skip_space()
        if close:
            yield from parser.expect(close)
            yield from parser.skip_space()
    except NotACallError:
        if parser.here:  # otherwise the marker was cut
            parser.give(Channel.CONTENT, parser.markup)
    parser.markup = ""


def _json_call(parser: ChannelParser, *, brace: bool = True) -> Parse[None]:
    """Parse the JSON object of a call. With `brace` false, its first brace has already been parsed."""
    if brace:
        yield from parser.skip_space()
        yield from parser.expect("{")
    known, name, early = parser.calls, "", ""

    def keep(text: str) -> None:
        nonlocal early
        parser.mark(text)
        early += text

    while True:
        yield from parser.skip_space()
        key = yield from _json_string(parser, parser.mark)
        yield from parser.skip_space()
        yield from parser.expect(":")
        yield from parser.skip_space()
        if key == "name" and not name:
            name = yield from _json_string(parser, parser.mark)
            if name and early:
                parser.open_call(name)
                parser.argue(early)
        elif key in ("arguments", "parameters") and parser.calls == known and not early:
            if parser.here != "{":
                raise NotACallError
            if name:
                parser.open_call(name)
            yield from _json_value(parser, parser.argue if name else keep)
        else:
            yield from _json_value(parser, parser.mark)
        yield from parser.skip_space()
        if (yield from parser.expect(",", "}")) == "}":
            break
    if not name:
        raise NotACallError
    if parser.calls == known:
        parser.open_call(name)
        parser.argue("{}")


_CLOSING = {"{": "}", "[": "]"}
_BARE = frozenset("0123456789+-.eEtrufalsn")
"""The characters of numbers, true, false and null."""


def _json_value(parser: ChannelParser, take: Callable[[str], None]) -> Parse[None]:
    """Pass a JSON value on. Raises NotACallError if the value cannot be JSON. Not all errors are detected."""
    closing: list[str] = []
    while True:
        if parser.here == '"':
            yield from _json_string(parser, take)
        elif parser.here and parser.here in _BARE:
            while parser.here and parser.here in _BARE:
                take(parser.here)
                yield
        else:
            if parser.here in _CLOSING:
                closing.append(_CLOSING[parser.here])
            elif closing and parser.here == closing[-1]:
                closing.pop()
            elif not closing or parser.here not in {",", ":", " ", "\t", "\r", "\n"}:
                raise NotACallError
            take(parser.here)
            yield
        if not closing:
            return


def _json_string(parser: ChannelParser, take: Callable[[str], None]) -> Parse[str]:
    """Pass a JSON string on, and return its value."""
    if parser.here != '"':
        raise NotACallError
    written = ""
    while not written or parser.here != '"':
        escape = parser.here == "\\"
        for _ in range(1 + escape):
            if parser.here < " ":  # a control character, or the end of the text
                raise NotACallError
            take(parser.here)
            written += parser.here
            yield
    take('"')
    yield
    try:
        return str(orjson.loads(written + '"'))
    except orjson.JSONDecodeError as error:
        raise NotACallError from error


def _xml_call(parser: ChannelParser, tools: Tools) -> Parse[None]:
    yield from parser.skip_space()
    yield from parser.expect(FUNCTION)
    name = yield from _xml_name(parser)
    types = tools.get(name, {})
    parser.open_call(name)
    before = "{"
    while True:
        yield from parser.skip_space()
        if (yield from parser.expect(PARAMETER, END_FUNCTION)) == END_FUNCTION:
            break
        key = yield from _xml_name(parser)
        parser.argue(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        before = ", "
        if parser.here == "\n":
            yield from parser.skip()
        yield from _xml_value(parser, types.get(key, ()))
        parser.markup = ""
    parser.argue("{}" if before == "{" else "}")


def _xml_name(parser: ChannelParser) -> Parse[str]:
    """Return the name in an opening marker, and the end of the marker."""
    name = ""
    while parser.here != ">":
        if not parser.here or parser.here in "<\r\n":
            raise NotACallError
        name += parser.here
        yield from parser.skip()
    yield from parser.skip()
    if not name:
        raise NotACallError
    return name


def _xml_value(parser: ChannelParser, types: Collection[str]) -> Parse[None]:
    """Convert the value of a parameter to JSON, and parse its closing marker.

    The value is a string, unless the parameter's type excludes strings.
    """
    markers = (f"\n{END_PARAMETER}", END_PARAMETER)
    if not types or "string" in types:
        parser.argue('"')
        if (yield from parser.text_until(markers, lambda text: parser.argue(_escaped(text)), trim=False)):
            parser.argue('"')
        return
    pieces: list[str] = []
    ended = yield from parser.text_until(markers, pieces.append, trim=False)
    value = "".join(pieces)
    parser.argue(value if is_json(value) or not ended else f'"{_escaped(value)}"')


def _escaped(text: str) -> str:
    """Escape text for a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _python_calls(parser: ChannelParser) -> Parse[list[tuple[str, str]]]:
    """Return the calls of a list after its first bracket: names, and arguments as JSON."""
    depth, quote = 1, ""
    while depth:
        if not parser.here:
            raise NotACallError
        if quote and parser.here == "\\":
            yield from parser.skip()
        elif quote:
            quote = "" if parser.here == quote else quote
        elif parser.here in "'\"":
            quote = parser.here
        else:
            depth += (parser.here in "([{") - (parser.here in ")]}")
        yield from parser.skip()
    try:
        calls = ast.parse(parser.markup.strip(), mode="eval").body
        assert isinstance(calls, ast.List), "it begins with a bracket and ends with its other"
        return [_python_call(call) for call in calls.elts]
    except (ValueError, TypeError, SyntaxError, AssertionError, RecursionError, MemoryError) as error:
        raise NotACallError from error


def _python_call(call: ast.expr) -> tuple[str, str]:
    """Return the name and arguments of a call. Raises ValueError unless it is a named function with named
    literals.
    """
    if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError(f"{ast.unparse(call)} is not a call with named arguments")
    arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return ast.unparse(call.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False)
