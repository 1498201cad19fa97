"""Sends the requests of a twin comparison: both deployments get the same prompts, and score each other's
output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from random import Random
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.run import Plan, reach
from tokenwire.asking.scenario import Asks, Conversation, Transcript, only_choice, together
from tokenwire.checks.reading.fields import first_prompt_ids
from tokenwire.dialects.logprobs import PROMPT, PROMPT_TOP, RANKED, Position, prompt_series, reported_along
from tokenwire.record import Stream
from tokenwire.usage_error import UsageError
from tokenwire_twin.twin import GREEDY, SEEDED, STREAMED, TwinSide, TwinTally, tally_twins
from tokenwire_twin.twin_numbers import Scoring, Text, common
from tokenwire_twin.twin_parts import (
    END,
    MESSAGES,
    WORDS,
    Part,
    ends_of,
    template_of,
    tokenizer_of,
)

TEXT_TOKENS = 32
"""The number of tokens of each text that both sides score."""
_PROMPT_TOKENS = 48
"""The length of a prompt. It is long enough for differences in the position encoding to show."""
_CHAT_NUMBERS = 12
"""The number of ids of a prompt that a message spells as decimal numbers, for endpoints without ids."""
_TOP = 5
"""The number of top logprobs. All servers support this number."""
_TWICE = 8
"""The number of answers that are compared and requested twice."""
_SCORED_AGAIN = 16
"""The number of texts that are scored again without concurrent requests."""
_OF_A_PART = 1 << 24
"""The size of the range of prompt numbers of one part of a comparison. No part has as many prompts."""
_IDS = range(10, 250)
"""Ids that are valid in nearly every vocabulary."""
_FIRST_IDS = range(10)
"""The smallest ids. In many vocabularies, the ids that end an answer are among them."""
_MOST_ENDS = 32
"""The most ids that are tested as ends of an answer."""
_TO_AN_END = 64
"""The token limit for answers to messages. Most of them should end before it."""
_FORCE = 100.0
"""A bias that forces an id. It is the largest that all servers accept."""
_SCENARIO = "twin"
_WITHOUT: tuple[dict[str, Any], ...] = (
    {"seed": None},
    {"return_token_ids": False},
    {"return_prompt_token_ids": False},
    {"ignore_eos": False},
)
"""Sets of fields to remove from a request.

One set after the other is removed, until the endpoint supports the remaining fields.
"""
_TALKS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "Name three rivers."),),
    (("system", "Answer in one word."), ("user", "Name a river.")),
    (("user", "Name a river."), ("assistant", "The Rhine."), ("user", "And another one?")),
    (("system", ""), ("user", " Spaces, \n\nlines, 12,345 and é ")),
)
"""Conversations that chat templates render differently: role and content of each message."""
_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two spaces,\ttabs\n\nand lines",
    "1234567890 + 3.14159 = 0x7f",
    "Straße, naïve, 東京, Привет, 🙂",
    "def f(x):\n    return {'key': [x, -x]}",
    "HELLO hello Hello hElLo",
)
"""Texts that tokenizers encode differently."""


def prompt_of(number: int, part: int) -> tuple[int, ...]:
    """Return the ids of a prompt. They are valid in nearly every vocabulary."""
    return tuple(Random(number + part * _OF_A_PART).choices(_IDS, k=_PROMPT_TOKENS))


def behind_another_prompt(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Return a prompt that differs only in its first id."""
    first, *rest = prompt
    return (_IDS[(first - _IDS.start + 1) % len(_IDS)], *rest)


@dataclass(frozen=True, order=True)
class Tells:
    """The kinds of outputs that an endpoint has returned, the most useful kind first."""

    scores: bool = False
    """True if the endpoint returns logprobs for the ids of a prompt."""
    ids: bool = False
    """True if the endpoint returns output ids with logprobs."""
    logprobs: bool = False
    prompt_ids: bool = False
    answers: bool = False


@dataclass(frozen=True)
class TwinEndpoint:
    """One endpoint of one side."""

    talk: Conversation
    part: int
    """The number of the part of the comparison. Each part has its own prompts."""
    tells: Tells = Tells()

    def fitted(self, ask: Ask) -> Ask:
        """Return the request without the fields that the endpoint does not support."""
        for without in _WITHOUT:
            ask = ask if self.talk.can_say(ask) else replace(ask, **without)
        return ask

    def ask_for(self, number: int, **fields: Any) -> Ask:
        """Return a request that continues the prompt with this number, with logprobs."""
        ask = Ask(
            input_ids=(prompt_of(number, self.part),),
            max_new_tokens=TEXT_TOKENS,
            ignore_eos=True,
            logprobs=True,
            top_logprobs=_TOP,
            return_token_ids=True,
        )
        ask = replace(ask, **fields)
        if self.talk.chat:
            numbers = prompt_of(number, self.part)[:_CHAT_NUMBERS]
            words = {"role": "user", "content": " ".join(map(str, numbers))}
            ask = replace(ask, input_ids=(), messages=(words,))
        return self.fitted(ask)

    def talks(self) -> dict[str, Ask]:
        """Return requests whose prompts show the chat template. Their answers run to the end."""
        return {
            f"{MESSAGES}-{number}": self.fitted(
                Ask(
                    messages=tuple({"role": role, "content": content} for role, content in talk),
                    max_new_tokens=_TO_AN_END,
                    return_prompt_token_ids=True,
                    return_token_ids=True,
                )
            )
            for number, talk in enumerate(_TALKS)
        }

    def words(self) -> dict[str, Ask]:
        """Return requests whose prompts show how the server tokenizes text."""
        return {
            f"{WORDS}-{number}": self.fitted(
                Ask(text=(text,), max_new_tokens=1, return_prompt_token_ids=True, return_token_ids=True)
            )
            for number, text in enumerate(_TEXTS)
        }

    def forced(self, ids: Sequence[int]) -> dict[str, Ask]:
        """Return requests that force the model to generate each of these ids, to show if the id ends an
        answer.
        """
        return {
            f"{END}-{token}": self.ask_for(
                0,
                max_new_tokens=2,
                ignore_eos=False,
                logit_bias={token: _FORCE},
                logprobs=False,
                top_logprobs=0,
            )
            for token in ids
        }

    def asks(self, place: int | None, texts: int) -> dict[str, Ask]:
        """Return the first requests: for answers to compare, and for every second text from `place` on.

        If `place` is None, texts are not scored, and all requests are for answers to compare.
        """
        asks = {}
        for number in range(_TWICE if place is not None else max(texts, _TWICE)):
            asks[f"{GREEDY}-{number}"] = self.ask_for(number)
        for number in range(_TWICE):
            asks[f"{STREAMED}-{number}"] = self.ask_for(number, stream=True)
            asks[f"{SEEDED}-{number}"] = self.ask_for(number, temperature=1.0, seed=number)
        for number in range(place, texts, 2) if place is not None else ():
            asks[f"text-{number}"] = self.ask_for(_TWICE + number, temperature=1.0, seed=number)
        return asks

    async def repeat(self, asks: Asks) -> dict[str, Stream]:
        """Repeat the first requests for answers to compare; return the answers by the original labels."""
        labels = [f"{kind}-{number}" for kind in (GREEDY, SEEDED) for number in range(_TWICE)]
        again = await self.ask_alone({f"{label}-again": asks[label] for label in labels})
        return {label.removesuffix("-again"): answer for label, answer in again.items()}

    async def ask_alone(self, asks: Asks) -> dict[str, Stream]:
        """Send requests one after the other, so that the server processes nothing else at the same time."""
        answers = {label: await self.talk.ask(label, ask) for label, ask in asks.items()}
        return {label: answer for label, answer in answers.items() if answer is not None}


def _scoring_ask(ids: tuple[int, ...]) -> Ask:
    """Return a request for the logprobs of these ids as a prompt."""
    return Ask(input_ids=(ids,), max_new_tokens=1, logprobs=True, logprob_start=0, top_logprobs=_TOP)


async def _meet(plan: Plan, part: int) -> list[TwinEndpoint]:
    """Return the endpoints of a target, each with the outputs that it returns. Raises UsageError."""
    reached = await reach(plan)
    found, sender = reached.found, reached.sender
    if not found.speaks:
        raise UsageError(found.diagnosis)
    sides = [
        TwinEndpoint(
            Conversation(_SCENARIO, dialect, sender, found.advertised, Transcript(), found.model),
            part,
        )
        for dialect in found.speaks
        if not dialect.gives_results
    ]
    if not sides:
        raise UsageError(f"{plan.settings.target} has no endpoint that generates tokens")
    return await together(*map(_acquainted, sides))


async def _acquainted(side: TwinEndpoint) -> TwinEndpoint:
    """Find out by two requests which outputs an endpoint returns."""
    asks = {"first": side.ask_for(0, max_new_tokens=2, return_prompt_token_ids=True)}
    prompt = prompt_of(0, side.part)
    if not side.talk.chat and side.talk.can_say(scoring := _scoring_ask(prompt)):
        asks["first-scored"] = scoring
    answers = await side.talk.ask_all(asks)
    written, choice = _written(answers.get("first")), only_choice(answers.get("first"))
    tells = Tells(
        scores=bool(_prefilled(answers.get("first-scored"), prompt[1:])),
        ids=bool(_ids(written)),
        logprobs=bool(written),
        prompt_ids=choice is not None and first_prompt_ids(choice, empty=False) is not None,
        answers=choice is not None,
    )
    return replace(side, tells=tells)


def best_pair(
    met: Sequence[Sequence[TwinEndpoint]], wanted: Callable[[TwinEndpoint], bool] = lambda _: True
) -> tuple[TwinEndpoint, TwinEndpoint] | None:
    """Return one endpoint of each side, so that both return the most useful outputs.

    `wanted`: a condition for both endpoints. Return None if no pair fits.
    """
    pairs = [(first, other) for first in met[0] for other in met[1] if wanted(first) and wanted(other)]
    return max(pairs, key=_worth, default=None)


def _worth(pair: tuple[TwinEndpoint, TwinEndpoint]) -> tuple[bool, ...]:
    """Return a sort key for a pair of endpoints: the outputs that both endpoints return, the most useful
    first.
    """
    first, other = pair
    # An endpoint with ids and one with messages or text would get different prompts.
    alike = (first.talk.chat, first.talk.dialect.takes_ids) == (other.talk.chat, other.talk.dialect.takes_ids)
    both = zip(astuple(first.tells), astuple(other.tells), strict=True)
    return alike, *(all(tell) for tell in both), first.talk.dialect.name == other.talk.dialect.name


def _written(answer: Stream | None) -> Scoring:
    """Return the logprobs that an answer reports for its generated ids."""
    choice = only_choice(answer)
    if choice is None:
        return ()
    return [position for _, reported in reported_along(choice) for position in reported.positions]


def _prefilled(answer: Stream | None, ids: tuple[int, ...]) -> Scoring:
    """Return the logprobs of these ids at the end of an answer's prompt.

    Empty if the prompt ends with other ids.
    """
    choice = only_choice(answer)
    if choice is None:
        return ()
    sampled, top, ranked = (prompt_series(choice, name) for name in (PROMPT, PROMPT_TOP, RANKED))
    if sampled is not None:
        tops = top[1].positions if top is not None else [None] * len(sampled[1].tokens)
        read = [Position(*both) for both in zip(sampled[1].tokens, tops, strict=False)]
    else:
        positions = ranked[1].positions if ranked is not None else []
        asked = answer.asked.input_ids[0] if answer is not None and answer.asked.input_ids else ()
        read = [
            Position(next((entry for entry in entries or () if entry.id == token), None), entries)
            for token, entries in zip(asked, positions, strict=False)
        ]
    scored = read[-len(ids) :]
    named = [position.sampled.id if position.sampled is not None else None for position in scored]
    return scored if named == list(ids) else ()


def _ids(scoring: Scoring) -> tuple[int, ...]:
    """Return the generated ids of an answer from its logprobs; empty if the entries have no ids."""
    ids = [position.sampled.id for position in scoring if position.sampled is not None]
    return tuple(ids) if len(ids) == len(scoring) and all(type(token) is int for token in ids) else ()


def _keeps_seeds(first: Mapping[str, Stream], again: Mapping[str, Stream]) -> bool | None:
    """True if repeated samples with a seed are equal. None if there are no such samples."""
    # Some endpoints do not support a seed. The samples of such an endpoint have none.
    labels = [label for label in again if label.startswith(SEEDED) and again[label].asked.seed is not None]
    kept = [_ids(_written(first.get(label))) == _ids(_written(again[label])) for label in labels]
    return all(kept) if kept else None


async def _scored(
    sides: Sequence[TwinEndpoint], first: Sequence[Mapping[str, Stream]], texts: int
) -> list[Text]:
    """Return all texts with the scores of both sides.

    The first texts are scored once more, without concurrent requests.
    """
    written = {number: _written(first[number % 2].get(f"text-{number}")) for number in range(texts)}
    ids = {number: found for number, scoring in written.items() if (found := _ids(scoring))}
    prompts = {number: prompt_of(_TWICE + number, sides[0].part) for number in ids}
    asks = {f"scored-{number}": _scoring_ask(prompts[number] + ids[number]) for number in ids}
    again = {f"{label}-again": asks[label] for label in list(asks)[:_SCORED_AGAIN]}
    asks |= {
        f"elsewhere-{number}": _scoring_ask(behind_another_prompt(prompts[number]) + of_text)
        for number, of_text in ids.items()
    }
    answers = await together(*(side.talk.ask_all(asks) for side in sides))
    repeated = await together(*(side.ask_alone(again) for side in sides))

    def scores(given: Sequence[Mapping[str, Stream]], label: str, number: int) -> tuple[Scoring, Scoring]:
        first_scoring, other = (_prefilled(side.get(label), ids[number]) for side in given)
        return first_scoring, other

    return [
        Text(
            number % 2,
            scores(answers, f"scored-{number}", number),
            scores(repeated, f"scored-{number}-again", number),
            written[number],
            scores(answers, f"elsewhere-{number}", number),
        )
        for number in ids
    ]


def _as_written(first: Sequence[Mapping[str, Stream]], again: Sequence[Mapping[str, Stream]]) -> list[Text]:
    """Return greedy answers as texts, up to the token where the two sides differ.

    Such texts are used if prompts cannot be scored.
    """
    labels = [label for label in first[0] if label.startswith(GREEDY)]
    read = [
        [(_written(side.get(label)), _written(repeated.get(label))) for label in labels]
        for side, repeated in zip(first, again, strict=True)
    ]
    return [
        Text(0, common(ours, theirs), (our_again, their_again))
        for (ours, our_again), (theirs, their_again) in zip(*read, strict=True)
    ]


async def _template_and_ends(pair: tuple[TwinEndpoint, TwinEndpoint] | None) -> list[dict[str, Stream]]:
    """Return the answers of both sides to messages, by label."""
    if pair is None:
        return [{}, {}]
    return await together(*(side.talk.ask_all(side.talks()) for side in pair))


def _likely_ends(answers: Sequence[Mapping[str, Stream]]) -> list[int]:
    """Return ids that may end an answer: the smallest ids, and the ids that the chat template adds.

    The prompts of all conversations contain the ids that the template adds.
    """
    around: list[int] = []
    for of_side in answers:
        choices = [choice for stream in of_side.values() if (choice := only_choice(stream)) is not None]
        prompts = [found[1] for choice in choices if (found := first_prompt_ids(choice, empty=False))]
        if prompts:
            common_ids = set(prompts[0]).intersection(*prompts[1:])
            around += sorted(token for token in common_ids if type(token) is int)
    return list(dict.fromkeys((*_FIRST_IDS, *around)))[:_MOST_ENDS]


async def _parts(
    met: Sequence[Sequence[TwinEndpoint]],
    main: tuple[TwinEndpoint, TwinEndpoint],
    answers: Sequence[Mapping[str, Stream]],
) -> tuple[Part, ...]:
    """Send the requests about template, end ids and tokenizer, and compare the answers.

    `answers`: those of the main endpoints.
    """
    talking = best_pair(met, lambda side: side.talk.chat and side.tells.answers)
    talks = await _template_and_ends(talking)
    reading = best_pair(met, lambda side: not side.talk.chat and side.tells.answers)
    words = [side.words() for side in reading] if reading is not None else []
    read = (
        await together(*(side.talk.ask_all(asks) for side, asks in zip(reading, words, strict=True)))
        if reading is not None
        else [{}, {}]
    )
    ids = _likely_ends(talks)
    forced = await together(*(side.talk.ask_all(side.forced(ids)) for side in main))
    same = [
        (ours, theirs)
        for first, other in zip((answers[0], talks[0]), (answers[1], talks[1]), strict=True)
        for label, ours in first.items()
        if (theirs := other.get(label)) is not None
    ]
    free = [(ours, talks[1][label]) for label, ours in talks[0].items() if label in talks[1]]
    tokenizer = tokenizer_of(read[0], read[1], same, "no endpoint returns ids and texts")
    return (
        template_of(talks[0], talks[1], "no endpoint of both takes messages", tokenizer),
        ends_of(forced[0], forced[1], free, "no answer came to an end"),
        tokenizer,
    )


async def ask_twins(plans: tuple[Plan, Plan], tokens: int, part: int = 0) -> TwinTally:
    """Send all requests of a comparison to both targets, and return the counts.

    At least `tokens` tokens are scored. Each part has its own prompts. Raises UsageError.
    """
    met = await together(*(_meet(plan, part) for plan in plans))
    sides = best_pair(met) or (met[0][0], met[1][0])
    scores = all(side.tells.scores for side in sides)
    texts = -(-tokens // TEXT_TOKENS)
    asks = [side.asks(place if scores else None, texts) for place, side in enumerate(sides)]
    first = await together(*(side.talk.ask_all(given) for side, given in zip(sides, asks, strict=True)))
    again = await together(*(side.repeat(given) for side, given in zip(sides, asks, strict=True)))
    scored = await _scored(sides, first, texts) if scores else []
    if not any(text.scores[0] and text.scores[1] for text in scored):
        scored = _as_written(first, again)
    parts = await _parts(met, sides, first)
    first_side, other = (
        TwinSide(plan.settings.target, side.talk.model, side.talk.dialect.name, _keeps_seeds(given, repeated))
        for plan, side, given, repeated in zip(plans, sides, first, again, strict=True)
    )
    ours, theirs = (
        [*given.values(), *repeated.values()] for given, repeated in zip(first, again, strict=True)
    )
    return tally_twins((first_side, other), (ours, theirs), scored, parts)
