"""Pairs for conversations: the answers to later turns, and the prompts that these have."""

from __future__ import annotations

from typing import Any

from known_answer_pairs import LAW, MODEL, WORDS
from pair import Pair
from wire_answers import answered

from tokenwire.checks.check import Target
from tokenwire.dialects.dialect import load_dialects
from tokenwire.dialects.history import HistoryBinding, SentCall
from tokenwire.dialects.markup import Markup, load_markup
from tokenwire.dialects.shapes import load_shapes
from tokenwire.parrot.encoding import chat_text
from tokenwire.parrot.speaker import Speaker
from tokenwire.record import Stream

_THOUGHTS, _FORMS = load_markup()
SPEAKER = Speaker(LAW, WORDS, MODEL.encode)
TARGET = Target(model=MODEL, markup=Markup(_THOUGHTS["think"], _FORMS["hermes"]))
TOOLS = [{"type": "function", "function": {"name": "get_weather"}}]
CHAT = "vllm-chat"
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
SAID = "<think>\nIt is known.\n</think>\n\nIt is warm."


def _turns() -> HistoryBinding:
    turns = load_dialects()[CHAT].request.turns
    assert turns is not None
    return turns


def messages(result: str, reasoning: str = "") -> list[Any]:
    """A question, a call and its result."""
    call = SentCall("call1", "get_weather", {"city": "Paris", "days": 2}, result)
    return [QUESTION, *_turns().turn([call], reasoning=reasoning)]


def due(conversation: list[Any]) -> int:
    """The prompt tokens that the template makes."""
    return len(MODEL.encode(chat_text(conversation) or ""))


def reply(conversation: list[Any], count: int, content: str = "It is warm.", label: str = "second") -> Stream:
    """A whole answer to a conversation, with a number of prompt tokens."""
    message = {"role": "assistant", "content": content, "reasoning": "It is known."}
    usage = {"prompt_tokens": count, "completion_tokens": 20, "total_tokens": count + 20}
    body = {"model": "m", "messages": conversation, "temperature": 0, "max_tokens": 64, "tools": TOOLS}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return answered(
        CHAT,
        body,
        {
            "id": "a",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        },
        label=label,
    )


TOLD = messages(SPEAKER.reply((*MODEL.encode(SAID), SPEAKER.end), "tool", messages("")) or "")
SHORT, LONG = messages("none"), messages("It is 21 degrees there. " * 8)
BARE = reply(LONG, due(LONG), label="bare")
THOUGHT = messages("It is 21 degrees there. " * 8, reasoning="I need the weather.")
FIRST = reply([QUESTION], 20, label="first")


def hiding(count: int, **more: Any) -> Stream:
    """An answer to a request that may hide its reasoning, with a number of tokens."""
    message = {"role": "assistant", "content": "It is warm.", "reasoning": None if more else "It is known."}
    usage = {"prompt_tokens": 9, "completion_tokens": count, "total_tokens": count + 9}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    document = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    body = {"model": "m", "messages": [QUESTION], "temperature": 0, "max_tokens": 64, **more}
    return answered(CHAT, body, {**document, "usage": usage}, label="hidden" if more else "shown")


def thinking(*tokens: str, reasoning: str | None, content: str, **more: Any) -> Stream:
    """An answer with its tokens, to a request that may control its reasoning."""
    entries = [{"token": t, "logprob": -0.1, "bytes": list(t.encode()), "top_logprobs": []} for t in tokens]
    message = {"role": "assistant", "content": content, "reasoning": reasoning}
    choice = {"index": 0, "message": message, "logprobs": {"content": entries}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": len(tokens), "total_tokens": len(tokens) + 9}
    document = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    body = {
        "model": "m",
        "messages": [QUESTION],
        "temperature": 0,
        "max_tokens": 64,
        "logprobs": True,
        **more,
    }
    return answered(CHAT, body, {**document, "usage": usage}, label="limited" if more else "free")


def limited(count: int, budget: int = 2) -> Stream:
    """The answer of `FREE` to a request with a budget of tokens of reasoning, which has some."""
    thoughts, rest = _TOKENS[:count], _TOKENS[count:]
    return thinking(
        *("<think>", *thoughts, "</think>", *rest, "<|end|>"),
        reasoning="".join(thoughts),
        content="".join(rest),
        thinking_token_budget=budget,
    )


_TOKENS = ("It", " is", " known", " to", " all")
FREE = thinking(
    "<think>", *_TOKENS, "</think>", "Warm", "<|end|>", reasoning="It is known to all", content="Warm"
)
OFF: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


def shaped(name: str, content: str = "It is warm.", status: int = 200) -> Stream:
    """The answer to a request in the shape of a client."""
    message = {"role": "assistant", "content": content, "reasoning": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    document = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    body = load_shapes()[name].written("Is it?", "m", 9)
    answer = document if status == 200 else {"error": {"message": "no", "code": status}}
    return answered(CHAT, body, answer, status=status, label=name)


JOINED = {"role": "user", "content": "a\nb"}
TWO_PARTS = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
LISTED = [{"role": "user", "content": [{"type": "text", "text": QUESTION["content"]}]}]

CONVERSATION_PAIRS = [
    Pair(
        "text-parts-are-the-text",
        (FIRST, reply(LISTED, 20, label="parts")),
        (FIRST, reply(LISTED, 31, label="parts")),
        None,
        "/usage",
    ),
    Pair(
        "text-parts-are-joined",
        (reply([JOINED], 9, label="text"), reply([TWO_PARTS], 9, label="parts")),
        (reply([JOINED], 9, label="text"), reply([TWO_PARTS], 8, label="parts")),
        None,
        "/usage",
        target=TARGET,
    ),
    Pair(
        "usual-shapes-are-answered-alike",
        (shaped("plain-chat"), shaped("smolagents")),
        (shaped("plain-chat"), shaped("smolagents", "It is.")),
        pointer="/choices/0/message/content",
    ),
    Pair(
        "usual-shapes-are-answered-alike",
        (shaped("plain-chat"), shaped("langchain-invoke")),
        (shaped("plain-chat"), shaped("langchain-invoke", status=400)),
        why="a shape is refused",
    ),
    Pair(
        "reasoning-budget-is-kept",
        (FREE, limited(2)),
        (FREE, limited(3)),
        pointer="/choices/0/message/reasoning",
        target=TARGET,
        why="the budget is exceeded",
    ),
    Pair(
        "reasoning-budget-is-kept",
        (FREE, limited(2)),
        (FREE, limited(1)),
        pointer="/choices/0/message/reasoning",
        target=TARGET,
        why="the budget is not used",
    ),
    Pair(
        "reasoning-budget-is-kept",
        (limited(4, 4), limited(2)),
        (limited(4, 4), limited(3)),
        pointer="/choices/0/message/reasoning",
        target=TARGET,
        why="there are answers with budgets alone",
    ),
    Pair(
        "reasoning-off-has-none",
        thinking("It", " is", "<|end|>", reasoning=None, content="It is", **OFF),
        thinking("It", " is", "<|end|>", reasoning="It is", content="", **OFF),
        pointer="/choices/0/message/reasoning",
        target=TARGET,
    ),
    Pair(
        "reasoning-off-has-none",
        thinking("It", " is", "<|end|>", reasoning=None, content="It is", reasoning_effort="none"),
        thinking("It", " is", "<|end|>", reasoning=None, content="It", reasoning_effort="none"),
        pointer="/choices/0/message/content",
        target=TARGET,
    ),
    Pair(
        "unknown-efforts-refused",
        answered(CHAT, {"messages": [QUESTION], "reasoning_effort": "enormous"}, {"error": {}}, status=400),
        hiding(20, reasoning_effort="enormous"),
    ),
    Pair(
        "hidden-reasoning-is-counted",
        (hiding(20), hiding(20, include_reasoning=False)),
        (hiding(20), hiding(15, include_reasoning=False)),
        pointer="/usage",
    ),
    Pair(
        "script-channels-are-right",
        reply(TOLD, due(TOLD)),
        reply(TOLD, due(TOLD), "It is known.It is warm."),
        pointer="/choices/0/message/content",
        target=TARGET,
    ),
    Pair(
        "history-is-in-the-prompt",
        (FIRST, BARE),
        (FIRST, reply(LONG, due(LONG) - 1)),
        pointer="/usage",
        target=TARGET,
        why="the template makes another number",
    ),
    Pair(
        "history-is-in-the-prompt",
        (FIRST, reply(LONG, 50)),
        (FIRST, reply(LONG, 20)),
        pointer="/usage",
        why="no template is known, and a longer conversation has no longer prompt",
    ),
    Pair(
        "tool-results-are-in-the-prompt",
        (reply(SHORT, 30), reply(LONG, 80, label="long")),
        (reply(SHORT, 30), reply(LONG, 30, label="long")),
        pointer="/usage",
    ),
    Pair(
        "earlier-reasoning-is-in-the-prompt",
        (BARE, reply(THOUGHT, due(LONG) + 9)),
        (BARE, reply(THOUGHT, due(LONG))),
        pointer="/usage",
        target=TARGET,
    ),
]
