"""Scenarios for channels: texts with reasoning and tool calls, which the server's parsers must extract."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenwire.ask import OMIT, Ask, Budget, Tool
from tokenwire.asking.scenario import Conversation, Steps, only_choice, scenario, text_of
from tokenwire.dialects.markup import Form, load_markup
from tokenwire.record import Stream
from tokenwire.scenarios.forms import forms, intervals_taken, with_sayable, worded
from tokenwire.wire.json_pointer import Keys, put

_HELLO = "Hello there, this is plain text: é 😀 done."
_PARAMETERS = {
    "get_weather": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "lookup": {"q": {"type": "object"}, "note": {"type": "string"}},
    "ping": {},
}
TOOLS = tuple(
    Tool(name, name, {"type": "object", "properties": properties}) for name, properties in _PARAMETERS.items()
)
_CITY = ("get_weather", {"city": "Paris", "days": 2})
_STRICT = Tool(
    "get_weather",
    "get_weather",
    {
        "type": "object",
        "properties": {"unit": {"enum": ["c", "f"]}},
        "required": ["unit"],
        "additionalProperties": False,
    },
    strict=True,
)
_MISFIT = ("get_weather", {"unit": "k"})
"""A call that does not fit its schema.

The call is as long as a call that fits, so that a parrot completes it.
"""
_PING: tuple[str, dict[str, Any]] = ("ping", {})
_RICH = {
    "q": {"a": {"b": [1, 2, {"c": "}]{"}]}, "s": 'he said "hi" \\ back\nnext', "u": "Köln 日本 😀👩\u200d👧"},
    "note": "a{b}c",
}
_LIKE_MARKERS = 'a < b, <tool and <thin or </thin, {"nam": 1} and [x(y=1)]. end <'
_STOPS = ("<tool_call>X", 'Paris", "dayz', "so Parrot")
"""Stop strings that never match. The texts contain only the beginning of each."""
_WITHOUT_TOOLS = "call-without-tools"
_ROOM = 400
_PROMPT = 80
"""Upper bound of the tokens that a chat template makes of a short message."""
_CUT = 24
"""A token limit that ends within most calls."""
_INTERVALS = {Budget.QUICK: (1, 4), Budget.STANDARD: (1, 4, 20, 50), Budget.SOAK: (1, 2, 3, 4, 7, 20, 50)}


@dataclass(frozen=True)
class _Script:
    """A way to make a target output a certain text."""

    talk: Conversation
    way: int | None = None
    """The index of the dialect's alternative that forces a text by a grammar; None for a parrot."""
    logprobs: bool = True
    """True if the server returns logprobs together with parsed texts."""

    def ask(self, text: str, *, in_bytes: bool = False) -> Ask | None:
        """Return a request whose answer is this text; None if that is impossible.

        A parrot outputs the text in the tokens of its tokenizer, or with one token for each byte.
        """
        says = self.talk.dialect.request.says
        if self.way is not None and says is not None:
            user, raw = ({"role": "user", "content": "hi"},), says.body(text, self.way)
            budget = self.talk.fitting(_ROOM, _PROMPT)
            return Ask(messages=user, max_new_tokens=budget, logprobs=True, raw=raw)
        speaker = self.talk.parrot
        if speaker is None:
            return None
        script = (*(speaker.bytes(text) if in_bytes else speaker.encode(text)), speaker.end)
        prompt = speaker.ask(self.talk.dialect, script)
        if prompt is None:
            return None
        logprobs = self.logprobs and self.talk.can_say(replace(prompt, logprobs=True))
        return replace(prompt, max_new_tokens=len(script) + 1, logprobs=logprobs)


async def _scripted(talk: Conversation) -> _Script | None:
    """Find out by requests how the target can be made to output a text; None if it cannot."""
    if talk.parrot is not None:
        script = _Script(talk)
        ask = script.ask(_HELLO)
        scored = await talk.ask("way", ask) if ask is not None and ask.logprobs else None
        return replace(script, logprobs=scored is None or scored.answered)
    ways = talk.dialect.request.says.beside if talk.dialect.request.says is not None else ()
    for way in range(len(ways)):
        script = _Script(talk, way)
        ask = script.ask(_HELLO)
        if ask is not None and text_of(await talk.ask(f"way-{way}", ask)) == _HELLO:
            return script
    talk.transcript.not_asked[talk.name_of("texts")] = (
        "no way was found to make the model output a text: no grammar applies from the first token, and the "
        "model is not a parrot (`tokenwire parrot` writes one)"
    )
    return None


async def _form(talk: Conversation, script: _Script) -> Form | None:
    """Return the format of tool calls that the server parses: the declared one, or the first that it returns
    as a call.
    """
    forms = load_markup()[1]
    if talk.tool_calls:
        return forms[talk.tool_calls]
    for name, form in forms.items():
        ask = script.ask(form.spelled(_PING))
        if ask is not None and _called(await talk.ask(f"form-{name}", _with_tools(ask))):
            return form
    return None


def _called(stream: Stream | None) -> bool:
    choice = only_choice(stream)
    return choice is not None and [call.name for call in choice.calls] == [_PING[0]]


def _with_tools(ask: Ask) -> Ask:
    return replace(ask, tools=TOOLS)


def _arguments_first(call: str) -> str:
    """Return a JSON call with its arguments before its name. Other formats are returned unchanged."""
    before, key, rest = call.partition('"name": "')
    name, comma, rest = rest.partition('", ')
    arguments, brace, behind = rest.rpartition("}")
    return f'{before}{arguments}, {key}{name}"{brace}{behind}' if key and comma and brace else call


def _texts(form: Form | None) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Return the texts by label, each with the other fields of its request."""
    think = load_markup()[0]["think"]
    thought = f"{think.opens}\nLet me see: 1 < 2, so Paris.\n{think.closes}\n\n"
    yield "content", _HELLO, {}
    yield "reasoning", f"{thought}The answer is 4.", {}
    yield "reasoning-cut", f"{think.opens}\nI never stop thinking.", {"max_new_tokens": 5}
    asked = {"role": "user", "content": f"What does {think.closes} mean?"}
    yield _MARKED_PROMPT, f"{thought}It ends a thought.", {"messages": (asked,)}
    if form is None:
        return
    call, two = form.spelled(_CITY), form.spelled(_CITY, ("get_weather", {"city": "Rome"}))
    yield "call", call, {}
    yield "content-call", f"I will look.\n{call}", {}
    yield "calls", two, {}
    yield "reasoning-content-call", f"{thought}Looking.\n{call}", {}
    yield "rich-arguments", form.spelled(("lookup", _RICH)), {}
    yield "no-arguments", form.spelled(_PING), {}
    yield "cut-call", call, {"max_new_tokens": _CUT}
    yield "like-markers", _LIKE_MARKERS, {}
    yield "unmatched-stop", f"{thought}Look.\n{call}", {"stop": _STOPS}
    yield "samples", f"{thought}Looking.\n{call}", {"n": 2, "temperature": 1.0, "top_k": 1}
    yield "behind-a-call", f"{call}\nThat is all.", {}
    yield "between-calls", f"{call}\nAnd then\n{form.spelled(_PING)}", {}
    yield "marker-in-arguments", form.spelled(("lookup", {"note": f"a{form.closes}b"})), {}
    yield "arguments-first", _arguments_first(call), {}
    yield "stop-in-arguments", call, {"stop": ("Par",)}
    yield "malformed", call.replace("}", "", 1), {}
    yield "cut-name", call, {"max_new_tokens": len(call.partition("_weather")[0].encode())}
    yield _WITHOUT_TOOLS, call, {}
    yield "call-in-reasoning", f"{think.opens}\nI could {call} now.\n{think.closes}\n\nNo.", {}


@scenario(chat=True)
async def _channels(talk: Conversation) -> None:
    """Texts with reasoning and tool calls, which a parrot outputs or a grammar enforces.

    They contain content, reasoning, and one or two calls before, after and between content. Arguments are
    nested, empty, with a marker or before the name. Some texts are cut off by a token limit or a stop, some
    are malformed or only resemble markers. Some requests have no tools, a marker in the prompt, an unmatched
    stop string or two samples. All are sent without streaming, and with streaming at several intervals.
    """
    script = await _scripted(talk)
    if script is None:
        return
    form = await _form(talk, script)
    for label, text, more in _texts(form):
        if label == _MARKED_PROMPT and script.way is None:
            continue  # a parrot's prompt is its script, so it contains the markers
        for spelled, in_bytes in ((label, False), (f"{label}-in-bytes", True)):
            if in_bytes and (script.way is not None or label not in (*_ALSO_IN_BYTES, _IN_BYTES_ALONE)):
                continue
            ask = None if label == _IN_BYTES_ALONE and not in_bytes else script.ask(text, in_bytes=in_bytes)
            if ask is not None:
                offers = form is not None and label != _WITHOUT_TOOLS
                asked = replace(_with_tools(ask) if offers else ask, **more)
                intervals = _INTERVALS[talk.budget][2:3] if label in _RARE else _INTERVALS[talk.budget]
                asks = forms(asked, spelled, intervals=intervals_taken(talk, asked, intervals), usage=True)
                await talk.ask_all({label: ask for label, ask in asks.items() if talk.can_say(ask)})


_ALSO_IN_BYTES = ("calls", "reasoning-content-call", "rich-arguments")
"""Texts that are output once more with one token for each byte, so that a marker comes in many pieces."""
_IN_BYTES_ALONE = "cut-name"
"""A text that is output only with one token for each byte. Its token limit ends it within the name."""
_MARKED_PROMPT = "marker-in-prompt"
"""The label of a text whose prompt contains a marker.

The marker must not affect the parsing of the answer.
"""
_RARE = (
    *("between-calls", "marker-in-arguments", "arguments-first", "stop-in-arguments", "malformed"),
    _IN_BYTES_ALONE,
    _MARKED_PROMPT,
)
"""Texts that are requested at one interval only."""


def spoken(talk: Conversation, text: str, otherwise: Ask) -> Ask:
    """Return a request that a parrot answers with this text.

    For other models, return `other` with the same token limit.
    """
    logprobs = not talk.dialect.has_items  # a target may refuse one of these fields
    script = _Script(talk, logprobs=logprobs)
    ask = script.ask(text) if talk.parrot is not None else None
    return otherwise if ask is None else replace(ask, max_new_tokens=otherwise.max_new_tokens)


@scenario(chat=True)
def _tool_choice(talk: Conversation) -> Steps:
    """Requests that forbid tool calls, that require a call of any tool, and that require a call of one named
    tool. A parrot outputs a call; other models are asked for the weather. Also a limit of one call for a text
    with two calls, and arguments that do not fit a strict tool. All are sent without and with streaming.
    """
    ask = replace(worded(talk, "What is the weather in Paris?"), max_new_tokens=talk.fitting(200, _PROMPT))
    form = load_markup()[1][talk.tool_calls or "hermes"]
    calling = _with_tools(spoken(talk, form.spelled(_CITY), ask))
    calling_twice = _with_tools(spoken(talk, form.spelled(_CITY, _PING), ask))
    binding = talk.dialect.request.tool
    if binding is None or not binding.chooses:
        return
    for choice in ("none", "required", "named"):
        yield forms(replace(calling, raw={**calling.raw, **binding.choosing(choice, _CITY[0])}), choice)
    yield forms(replace(calling_twice, raw={**calling_twice.raw, **binding.one_at_most()}), "one-at-most")
    yield forms(replace(spoken(talk, form.spelled(_MISFIT), ask), tools=(_STRICT,)), "strict")


@scenario(chat=True, parrot=True)
async def _plain_path(talk: Conversation) -> None:
    """Texts of a parrot with reasoning, calls, samples and an unmatched stop string, requested by messages as
    applications do it. The requests lack logprobs, ids, usage in streams and the other fields that the suite
    usually adds. One request has logprobs and usage. All requests are sent without and with streaming.
    """
    speaker, tool = talk.parrot, talk.dialect.request.tool
    if speaker is None or tool is None:
        return
    form, bare = (
        load_markup()[1][talk.tool_calls or "hermes"],
        dict.fromkeys(talk.dialect.request.added, OMIT),
    )
    for label, text, more in _texts(form):
        script = (*speaker.encode(text), speaker.end)
        words = speaker.reply(script, "user", ()) if label in _ON_THE_PLAIN_PATH else None
        if words is None:
            continue
        told = Ask(
            messages=({"role": "user", "content": words},), max_new_tokens=len(script) + 1, tools=TOOLS
        )
        plain = replace(told, raw=bare, **more)
        asks = forms(plain, label)
        if label == _ON_THE_PLAIN_PATH[0]:
            asks |= forms(with_sayable(talk, told, logprobs=True), f"{label}-with-more", usage=True)
        await talk.ask_all({label: ask for label, ask in asks.items() if talk.can_say(ask)})


@scenario(chat=True)
def _reasoning_controls(talk: Conversation) -> Steps:
    """Reasoning that is shown, hidden or limited, if the endpoint has fields for this.

    If it has a field that switches reasoning off, also a text without reasoning with this field. Also
    reasoning efforts, one of which is unknown. A parrot outputs a text with reasoning; other models are asked
    for a river.
    """
    controls = talk.dialect.request.reasoning
    think, plain = load_markup()[0]["think"], replace(worded(talk, "Name a river."), max_new_tokens=64)
    ask = spoken(talk, f"{think.opens}\nLet me see.\n{think.closes}\n\nThe Rhine.", plain)
    if controls.hides or controls.budget:
        yield forms(ask, "shown", usage=True)
    if controls.hides:
        yield forms(replace(ask, raw=controls.hides), "hidden", usage=True)
    for tokens in _BUDGETS if controls.budget else ():
        limited = replace(ask, raw=_having(controls.budget, tokens))
        yield forms(limited, f"budget-{tokens}", usage=True)
    told = spoken(talk, "The Rhine.", plain)
    for number, fields in enumerate(controls.without):
        yield forms(replace(told, raw=fields), f"off-{number}", usage=True)
    for effort in _EFFORTS if controls.effort else ():
        yield {f"effort-{effort}": replace(told, raw=_having(controls.effort, effort))}


def _having(place: Keys, value: Any) -> dict[str, Any]:
    """Return body fields in which one place has this value."""
    fields: dict[str, Any] = {}
    put(fields, place, value)
    return fields


_BUDGETS = (4, 40)
"""Limits for reasoning tokens: below and above the length of a short reasoning."""
_EFFORTS = ("low", "enormous")
"""Two reasoning efforts: one that every endpoint knows, and one that no endpoint knows."""
_ON_THE_PLAIN_PATH = ("reasoning-content-call", "content", "calls", "samples", "unmatched-stop")
