"""Scenarios for chat messages, and for ids as input and output of the chat endpoint."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, only_choice, scenario, text_of, token_ids
from tokenwire.dialects.demands import filled_in
from tokenwire.record import Stream
from tokenwire.scenarios.forms import forms, intervals_taken
from tokenwire.scenarios.stop import NEVER, is_plain, stop_across_tokens

_ASK = Ask(
    messages=(
        {"role": "system", "content": "You answer briefly."},
        {"role": "user", "content": "Name three rivers."},
    )
)


@scenario(chat=True)
def _chat_messages(talk: Conversation) -> Steps:
    """Messages without streaming (twice), with streaming with and without usage, and at two intervals if the
    endpoint has a field for them. Content, roles, finish reason and counts are compared. The answers have
    more tokens than servers hold back. Also the same messages with a list of one text as the
    content, and for a parrot a list of two texts.
    """
    ask = replace(_ASK, max_new_tokens=64)
    cuts = intervals_taken(talk, ask, talk.intervals[:2])
    asks = forms(ask, again=True, intervals=cuts) | {"stream-usage": replace(ask, stream=True, usage=True)}
    if part := talk.dialect.request.text_part:
        listed = [filled_in(part, {"TEXT": _ASK.messages[-1]["content"]})]
        messages = (*_ASK.messages[:-1], {"role": "user", "content": listed})
        asks["parts"] = replace(_ASK, messages=messages, max_new_tokens=4)
        joiner = talk.dialect.request.texts_joined_by
        if joiner is not None and talk.parrot is not None:
            letters = [filled_in(part, {"TEXT": letter}) for letter in "ab"]
            for label, content in (("two-parts", letters), ("joined", joiner.join("ab"))):
                asks[label] = Ask(messages=({"role": "user", "content": content},), max_new_tokens=4)
    yield asks


@scenario(chat=True)
def _chat_samples(_: Conversation) -> Steps:
    """Two samples of one conversation. Each choice has its own message, prompt ids and meta_info."""
    ask = replace(_ASK, max_new_tokens=12, n=2, temperature=1.0)
    whole = replace(ask, return_prompt_token_ids=True, return_meta_info=True)
    yield {"plain": ask, "whole": whole, "stream": replace(ask, stream=True, usage=True)}


@scenario(chat=True)
def _null_content(_: Conversation) -> Steps:
    """A conversation with an empty turn: once with null as its content, once with an empty string, each with
    its ids.
    """
    question, again = ({"role": "user", "content": words} for words in ("Name a river.", "And a lake?"))
    for label, content in (("null", None), ("empty", "")):
        silent = {"role": "assistant", "content": content}
        ask = Ask(messages=(question, silent, again), max_new_tokens=4, return_prompt_token_ids=True)
        yield {label: ask}


@scenario(chat=True)
def _chat_budget(talk: Conversation) -> Steps:
    """Limits of one token and of five, without and with streaming.

    No more tokens are counted, and each finish is length. Also a limit of 0, unless 0 means no limit.
    """
    none = () if talk.dialect.policy.zero_budget == "unspecified" else (0,)
    for budget in (*none, 1, 5):
        yield forms(replace(_ASK, max_new_tokens=budget), f"{budget}", usage=True)


@scenario(chat=True)
async def _chat_stop_string(talk: Conversation) -> None:
    """A stop string that begins in one chunk of a known answer and ends in the next chunk.

    Neither the message nor a delta contains the stop string, unless the request sets that it stays in the
    text. A stop string that never matches changes nothing.
    """
    ask = replace(_ASK, max_new_tokens=48)
    stops = {"never": (NEVER,)}
    found = stop_across_tokens(only_choice(await talk.ask("unstopped", replace(ask, stream=True))))
    await talk.ask("unstopped-whole", ask)
    if found is not None:
        stops["across"] = (found,)
    for label, stop in stops.items():
        stopped = replace(ask, stop=stop)
        kept = replace(stopped, no_stop_trim=True)
        more = {f"{label}-kept": kept} if label != "never" and talk.can_say(kept) else {}
        await talk.ask_all(forms(stopped, label, again=True) | more)


def _token_to_stop_at(stream: Stream | None) -> str | None:
    """Return the text of a token that occurs in the answer only once.

    The logprobs show the texts of tokens.
    """
    choice = only_choice(stream)
    logprobs = [e.details.get("logprobs") for e in choice.emissions] if choice else []
    entries = [
        entry
        for reported in logprobs
        if isinstance(reported, dict)
        for entry in reported.get("content") or []
    ]
    texts = [entry.get("token") for entry in entries if isinstance(entry, dict)]
    text = text_of(stream)
    plain = [piece for piece in texts[2:] if isinstance(piece, str) and is_plain(piece)]
    return next((piece for piece in plain if text.count(piece) == 1 and len(piece.strip()) > 1), None)


@scenario(chat=True, at_most=7)
async def _chat_logprobs(talk: Conversation) -> None:
    """Logprobs in chat's format, without and with streaming.

    Each token has one entry, even if its text is hidden as part of the stop.
    """
    ask = replace(_ASK, max_new_tokens=24, logprobs=True, top_logprobs=2)
    answers = await talk.ask_all(forms(ask, again=True, usage=True))
    await talk.ask("without-top", replace(ask, top_logprobs=0))
    await talk.ask("samples", replace(ask, n=2, temperature=1.0, max_new_tokens=8))
    stop = _token_to_stop_at(answers.get("whole"))
    if stop is not None:
        await talk.ask_all(forms(replace(ask, stop=(stop,)), "stopped", usage=True))


@scenario(chat=True)
def _chat_ids(_: Conversation) -> Steps:
    """Ids as input and output of the chat endpoint.

    The ids equal the ids on every other endpoint, and only requested ids are sent. The two prompts have
    different lengths. A server that uses its template instead of the ids would report the same length for
    both.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=48, ignore_eos=True)
    everything = replace(ask, return_prompt_token_ids=True, return_token_ids=True, return_meta_info=True)
    scored = replace(everything, logprobs=True, top_logprobs=2)
    yield {
        "plain": ask,
        "shorter": replace(ask, input_ids=(PROMPT[:7],), max_new_tokens=12),
        "prompt-ids": replace(ask, return_prompt_token_ids=True),
        "token-ids": replace(ask, return_token_ids=True),
        "meta-info": replace(ask, return_meta_info=True),
        "everything": everything,
        "everything-again": everything,
        "everything-logprobs": scored,
        "samples": replace(everything, n=2),
        "samples-logprobs": replace(scored, n=2),
        "three-samples": replace(everything, n=3, max_new_tokens=8),
        "stream": replace(ask, stream=True),
    }


@scenario(chat=True)
async def _chat_empty_text(talk: Conversation) -> None:
    """A request whose stop id is the first id that the model chooses, so that there is no text.

    The content is empty, not null.
    """
    ask = replace(_ASK, max_new_tokens=4, return_token_ids=True)
    ids = token_ids(await talk.ask("unstopped", ask))
    if ids:
        await talk.ask("stopped-at-once", replace(ask, stop_token_ids=ids[:1]))
