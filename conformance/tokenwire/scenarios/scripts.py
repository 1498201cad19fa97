"""Scenarios that script a parrot: the prompt determines the output, so the right answer to each request is
known.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import wraps
from itertools import islice
from types import MappingProxyType

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import Conversation, scenario
from tokenwire.asking.tap import SlowReader
from tokenwire.parrot.speaker import Ids, Speaker
from tokenwire.scenarios.abort import can_abort
from tokenwire.scenarios.forms import ask_and_then, forms, intervals_taken, with_sayable

_INTERVALS = {Budget.QUICK: (1, 4), Budget.STANDARD: (1, 2, 3, 4, 5, 7), Budget.SOAK: (1, 2, 3, 4, 5, 7, 16)}
"""Values of stream_interval.

Intervals of one to five split characters of three and four ids at each place.
"""
_TEXT = (
    "The parrot says again what it was told. A server sends each token as soon as it is sampled, and a "
    "client that reads the stream puts the pieces together: the text must be the same, in a whole answer and "
    "in a stream, at each interval, between words, within a word. What was sent is never changed, and what "
    "is finished stays finished. Every id has one entry in every series. "
)
_STOP = "QZ"
"""A stop string of two tokens that occurs nowhere else in the texts."""

_Scripted = Callable[[Conversation, Speaker], Awaitable[None]]


def _scripts(*, budget: Budget = Budget.QUICK) -> Callable[[_Scripted], _Scripted]:
    """Register a coroutine as a scenario for parrots, as `scenario` does."""

    def register(given: _Scripted) -> _Scripted:
        @wraps(given)
        async def run(talk: Conversation) -> None:
            if talk.parrot is not None:
                await given(talk, talk.parrot)

        scenario(budget=budget, parrot=True)(run)
        return given

    return register


def _together(talk: Conversation, label: str, scripts: Mapping[str, Ask]) -> dict[str, Ask]:
    """Return one request with all prompts, if the endpoint takes several; otherwise with the first prompt."""
    if len(scripts) > 1:
        batch = replace(
            next(iter(scripts.values())),
            input_ids=tuple(ids for ask in scripts.values() for ids in ask.input_ids),
            text=tuple(text for ask in scripts.values() for text in ask.text),
            batch=True,
        )
        if talk.can_say(batch):
            return {label: batch}
    return {f"{label}-{name}": ask for name, ask in islice(scripts.items(), 1)}


async def _ask_scripts(
    talk: Conversation,
    speaker: Speaker,
    label: str,
    scripts: Mapping[str, Ids],
    *,
    asked: Ask | None = None,
    intervals: tuple[int, ...] = (),
    endings: Mapping[str, Ids] = MappingProxyType({}),
) -> None:
    """Request scripts without streaming, and with streaming at intervals.

    `asked`: other fields of the requests; by default, the token limit is that of the longest script plus one.
    `endings`: the last ids of the prompts.
    """
    asked = asked or Ask()
    placed = {name: speaker.ask(talk.dialect, ids, endings.get(name, ())) for name, ids in scripts.items()}
    asked = replace(asked, max_new_tokens=asked.max_new_tokens or max(map(len, scripts.values())) + 1)
    asks_by_name = {
        name: replace(asked, input_ids=prompt.input_ids, text=prompt.text, messages=prompt.messages)
        for name, prompt in placed.items()
        if prompt is not None
    }
    for name, ask in _together(talk, label, asks_by_name).items():
        asks = forms(ask, name, intervals=intervals_taken(talk, ask, intervals), usage=True)
        shown = replace(ask, return_prompt_token_ids=talk.chat, return_token_ids=talk.chat)
        if talk.can_say(shown):
            asks[f"{name}-whole"] = shown
        await talk.ask_all(asks)


@_scripts()
async def _script_characters(talk: Conversation, speaker: Speaker) -> None:
    """Characters of two, three and four ids each, kanji next to kana, invalid bytes, and a special id within
    a character. Intervals of one to seven ids split them at every place.
    """
    spell, pieces, end = speaker.bytes, speaker.encode, (speaker.end,)
    world = "世界の文字化け、漢字かな交じり文。"
    scripts = {
        "split": (
            *pieces("It says "),
            *spell("é ж 漢字かな 😀🦖👩‍💻 🇯🇵 한국어 e\u0301"),
            *pieces(" again."),
            *end,
        ),
        "kanji": (*pieces(f"日本語の日本語。{world}世界世界世界世界。漢字世界世かな"), *end),
        "kanji-in-bytes": (*spell(f"a{world}"), *end),
        "kanji-one-later": (*spell(f"ab{world}"), *end),
    }
    special = speaker.special()
    if special is not None:
        scripts["special-within"] = (*spell(b"a\xf0\x9f"), special, *spell(b"\x98\x80 b"), *end)
    broken = b"a\x80\xff b \xe4\xb8 c \xf0\x9f d \xc0\xaf \xed\xa0\x80 e \xef\xbf\xbd f\x00\r\n\t g"
    scripts["lone-run"] = (*spell(b"a" + b"\xff" * 60 + b"b"), *end)
    scripts["lone-bytes"] = (*spell(broken), *end)
    await _ask_scripts(talk, speaker, "texts", scripts, intervals=_INTERVALS[talk.budget])


@_scripts()
async def _script_tails(talk: Conversation, speaker: Speaker) -> None:
    """Answers that end within a character, or with the character U+FFFD.

    The answers end by themselves, by a stop id, or by the token limit.
    """
    spell, end = speaker.bytes, (speaker.end,)
    scripts = {
        "whole": (*spell("ab\ufffd"), *end),
        "cut": (*spell(b"ab\xf0\x9f\x98"), *end),
        "lone": (*spell(b"ab\x80\x80"), *end),
        "whole-ones": (*spell("\ufffd\ufffd\ufffd"), *end),
        "only": (*spell(b"\xe4\xb8"), *end),
    }
    await _ask_scripts(talk, speaker, "end", scripts)
    stop = spell("!")
    stopped = {"whole": (*spell("ab\ufffd"), *stop), "cut": (*spell(b"ab\xf0\x9f"), *stop)}
    if talk.can_say(Ask(input_ids=((1,),), stop_token_ids=stop)):
        await _ask_scripts(talk, speaker, "stop-id", stopped, asked=Ask(stop_token_ids=stop))
    cut = {"four": spell("ab😀"), "three": spell("abc漢"), "two": spell("abcé"), "whole": spell("a\ufffd")}
    await _ask_scripts(talk, speaker, "budget", cut, asked=Ask(max_new_tokens=4))


@_scripts()
async def _script_stops(talk: Conversation, speaker: Speaker) -> None:
    """Stop strings at difficult places: within a token, over two to twelve tokens, one character before the
    end, begun and not completed. Also stop strings that overlap themselves, that contain a hidden special
    id, or that are output in more tokens than usual. Also several stop strings of
    which the earliest wins, the text of hidden ids, and U+FFFD.
    """
    spell, pieces, end = speaker.bytes, speaker.encode, (speaker.end,)
    places = {
        "across": (*pieces("the parrot "), *spell("QZ says"), *end),
        "before-the-end": (*spell("abQZ."), *end),
        "begun": (*spell("ab Q"), *end),
        "at-the-end": (*spell("ab 😀QZ"), *end),
        "first": (*spell("QZab"), *end),
        "twice-begun": (*spell("aQQbQZc"), *end),
    }
    special = speaker.special()
    if special is not None:
        places["around-a-special"] = (*spell("abQ"), special, *spell("Zcd"), *end)
    await _ask_scripts(talk, speaker, "places", places, asked=Ask(stop=(_STOP,)), intervals=(1, 4))
    spelled = {
        "word": (*pieces("it says "), *spell("generation now"), *end),
        "kana": (*pieces("it says "), *spell("漢字かな文"), *end),
        "marker": (*pieces("it says "), *spell("so</think>now"), *end),
    }
    await _ask_scripts(talk, speaker, "spelled", spelled, asked=Ask(stop=("generation", "かな", "</think>")))
    overlapping = {
        "letters": (*spell("xaaab and more"), *end),
        "pairs": (*spell("abababac and more"), *end),
        "within": (*pieces("the parrot says again what it was told"), *end),
    }
    await _ask_scripts(talk, speaker, "overlapping", overlapping, asked=Ask(stop=("aab", "ababac", "arro")))
    several = {"earliest": (*pieces("one two three four"), *end)}
    await _ask_scripts(talk, speaker, "several", several, asked=Ask(stop=("three", "two", "nowhere")))
    if special is not None:
        hidden = {"special": (*spell("ab"), special, *spell("cd"), *end)}
        texts = tuple(speaker.words.pieces[token].decode() for token in (special, speaker.end))
        await _ask_scripts(talk, speaker, "hidden", hidden, asked=Ask(stop=texts))
    replaced = {"emoji": (*spell("ab😀cd"), *end), "whole": (*spell("ab\ufffdcd"), *end)}
    await _ask_scripts(talk, speaker, "replacement", replaced, asked=Ask(stop=("\ufffd",)))


_PARTS = (51, 101, 50, 65, 129, 64, 100, 128, 151)
"""Token positions at which stop strings end.

Servers send held-back output after 50, 64, 100 and 128 tokens, so these are at or just after those positions.
"""


@_scripts(budget=Budget.STANDARD)
async def _script_stop_parts(talk: Conversation, speaker: Speaker) -> None:
    """Stop strings of two and of six ids that end where servers send held-back output.

    The text before the stop string is sent, and nothing of the stop string.
    """
    words = speaker.encode(_TEXT * 2)
    for label, stop, ends in (("two", _STOP, _PARTS), ("six", "abcdeQ", (51, 52, 101, 129))):
        spelled = speaker.bytes(stop)
        after = (*speaker.encode(" and on"), speaker.end)
        scripts = {f"{end}": (*words[: end - len(spelled)], *spelled, *after) for end in ends}
        await _ask_scripts(talk, speaker, label, scripts, asked=Ask(stop=(stop,)))


@_scripts()
async def _script_prompts(talk: Conversation, speaker: Speaker) -> None:
    """Prompts that end within a character, or with the character U+FFFD, and contain the stop string.

    The answer and the search for the stop begin after the prompt.
    """
    script = (*speaker.bytes("ab "), *speaker.encode("the parrot "), *speaker.bytes("QZ!"))
    endings = {"four": b"\xf0\x9f", "three": b"\xe4\xb8", "whole": b"\xef\xbf\xbd", "never": b"\xff"}
    endings_spelled = {label: speaker.bytes(ending) for label, ending in endings.items()}
    await _ask_scripts(
        talk,
        speaker,
        "ends",
        dict.fromkeys(endings_spelled, script),
        asked=Ask(stop=(_STOP,)),
        endings=endings_spelled,
    )


@_scripts(budget=Budget.STANDARD)
async def _script_budgets(talk: Conversation, speaker: Speaker) -> None:
    """Texts that end at a known id, by themselves or by a stop string.

    The token limit is the number of tokens up to this end, one less, or one more. If the end and the limit
    coincide, the finish is stop.
    """
    words = speaker.encode("It says it again, and it is")
    scripts = {
        "end": (*words, *speaker.bytes("."), speaker.end),
        "stop": (*words, *speaker.bytes(f"{_STOP}!!")),
    }
    for more in (-1, 0, 1):
        asked = Ask(stop=(_STOP,), max_new_tokens=len(words) + len(_STOP) + more)
        await _ask_scripts(talk, speaker, f"{asked.max_new_tokens}", scripts, asked=asked)


@_scripts()
async def _script_logprobs(talk: Conversation, speaker: Speaker) -> None:
    """Logprobs of the output, of the most likely ids and of chosen ids, at every id.

    The texts have words, bytes that share a text, hidden ids, held-back text, and the id or the string
    that ends the answer. Also the logprobs of the prompt.
    """
    spell, pieces, end = speaker.bytes, speaker.encode, (speaker.end,)
    special = speaker.special()
    scripts = {
        "stopped": (*pieces("the parrot says "), *spell("漢😀 QQZ!"), *end),
        "hidden": (*pieces("it says"), *((special,) if special is not None else ()), *spell(" 字Q"), *end),
        "cut": (*pieces("it says "), *spell(b"a\xf0\x9f")),
        "words": (*pieces("The parrot says QQZ! again"), *end),
    }
    asked = Ask(stop=(_STOP,), logprobs=True, top_logprobs=5)
    chosen = replace(asked, chosen_ids=(700, 97, 300))
    wanted = chosen if talk.can_say(replace(chosen, input_ids=((1,),))) else asked
    await _ask_scripts(talk, speaker, "each", scripts, asked=wanted, intervals=(1, 4))
    if talk.chat or not talk.can_say(Ask(input_ids=((1,),), logprobs=True, logprob_start=0)):
        return
    prompt = speaker.ask(talk.dialect, (*pieces("it says again: "), *spell("漢字"), *end))
    if prompt is not None:
        scored = replace(prompt, max_new_tokens=4, logprobs=True, logprob_start=0, top_logprobs=3)
        await talk.ask("prompt", scored)


@_scripts(budget=Budget.STANDARD)
async def _script_long(talk: Conversation, speaker: Speaker) -> None:
    """Answers of hundreds of ids, without and with streaming; of thousands of ids with a larger budget."""
    script = tuple(speaker.encode(_TEXT * 8))[:500]
    prompt = speaker.ask(talk.dialect, script)
    if prompt is None:
        return
    ask = with_sayable(talk, prompt, ignore_eos=True)
    length = 1024 + len(speaker.bytes("system and user and assistant"))
    whole, read = (3000, talk.readable()) if talk.budget is Budget.SOAK else (320, 320)
    await talk.ask("whole", replace(ask, max_new_tokens=talk.fitting(whole, length)))
    streamed = replace(ask, stream=True, usage=True)
    await talk.ask("stream", replace(streamed, max_new_tokens=talk.fitting(read, length)))


@_scripts(budget=Budget.STANDARD)
async def _script_again(talk: Conversation, speaker: Speaker) -> None:
    """A long prompt that no cache contains, sent twice.

    Then several scripts at once, a client that reads slowly, and two samples that are both the most likely
    output. The output must always be the same.
    """
    words = _TEXT.split()
    fresh = " ".join(talk.draw.choice(words) for _ in range(120))
    script = (*speaker.encode(f"{fresh} 漢字 😀"), speaker.end)
    cold = speaker.ask(talk.dialect, script)
    if cold is not None:
        ask = replace(cold, max_new_tokens=40)
        await talk.ask("cold", ask)
        await talk.ask_all(forms(ask, "warm", usage=True))
        slow = replace(cold, max_new_tokens=len(script), logprobs=True, top_logprobs=5, stream=True)
        await talk.ask("slow", slow, slow_reader=SlowReader())
        samples = replace(cold, n=2, temperature=1.0, top_k=1, max_new_tokens=24)
        if talk.can_say(samples):
            await talk.ask_all(forms(samples, "samples", usage=True))
    if talk.dialect.takes_ids and not talk.chat:
        many = {
            f"beside-{place}": (*speaker.bytes(f"{place} 漢字😀 {_STOP}")[: 6 + 3 * place], speaker.end)
            for place in range(4)
        }
        asks = {label: speaker.ask(talk.dialect, ids) for label, ids in many.items()}
        await talk.ask_all(
            {
                label: replace(ask, stop=(_STOP,), max_new_tokens=40, stream=place % 2 == 0)
                for place, (label, ask) in enumerate(asks.items())
                if ask is not None
            }
        )


@_scripts(budget=Budget.STANDARD)
async def _script_abort(talk: Conversation, speaker: Speaker) -> None:
    """A long text of characters that are split over tokens, aborted while it is output.

    The delivered part stays, and nothing follows.
    """
    if not can_abort(talk):
        return
    script = tuple(speaker.bytes("漢字かな😀 " * 30))
    prompt = speaker.ask(talk.dialect, script)
    if prompt is None:
        return
    request_id = talk.new_id()
    ask = replace(prompt, max_new_tokens=1000, stream=True, request_id=request_id)
    await ask_and_then(talk, "stream", ask, 40, lambda _: talk.abort("stream-abort", request_id))
