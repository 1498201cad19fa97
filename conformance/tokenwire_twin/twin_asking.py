"""Twins: two deployments of one model get the same requests and score each other's ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.run import Plan, reach
from tokenwire.asking.scenario import Asks, Conversation, Transcript, only_choice, together
from tokenwire.dialects.logprobs import PROMPT, PROMPT_TOP, RANKED, Position, prompt_series, reported_along
from tokenwire.record import Stream
from tokenwire.usage_error import UsageError
from tokenwire_twin.twin import SEEDED, Scoring, Text, TwinSide, TwinTally, common, tally_twins

TEXT_TOKENS = 32
"""The tokens of each text that both sides score."""
_PROMPT_TOKENS = 12
_TOP = 5
"""The candidates of each position, few enough for every server."""
_TWICE = 8
"""The number of compared answers that are repeated."""
_SCORED_AGAIN = 16
"""The number of texts that are scored again, alone."""
_OF_A_PART = 1 << 24
"""A number that exceeds the prompts of a part."""
_SCENARIO = "twin"
_WITHOUT: tuple[dict[str, Any], ...] = ({"seed": None}, {"return_token_ids": False}, {"ignore_eos": False})
"""The options to leave out, one after the other, until an endpoint supports the rest."""


def _prompt(number: int, part: int) -> tuple[int, ...]:
    """Return ids that are valid in nearly every vocabulary."""
    return tuple(Random(number + part * _OF_A_PART).choices(range(10, 250), k=_PROMPT_TOKENS))


@dataclass(frozen=True)
class _Side:
    """One of the two deployments, and the state of its conversation."""

    talk: Conversation
    scores: bool
    """True if its endpoint supports logprobs of a prompt."""
    part: int
    """The part whose prompts it gets."""

    def ask_for(self, number: int, **fields: Any) -> Ask:
        """Return an ask that continues a prompt, with logprobs."""
        ask = Ask(
            input_ids=(_prompt(number, self.part),),
            max_new_tokens=TEXT_TOKENS,
            ignore_eos=True,
            logprobs=True,
            top_logprobs=_TOP,
            return_token_ids=True,
        )
        ask = replace(ask, **fields)
        if self.talk.chat:
            words = {"role": "user", "content": " ".join(map(str, _prompt(number, self.part)))}
            ask = replace(ask, input_ids=(), messages=(words,))
        for without in _WITHOUT:
            ask = ask if self.talk.can_say(ask) else replace(ask, **without)
        return ask

    def asks(self, place: int | None, texts: int) -> dict[str, Ask]:
        """Return the first asks: answers to compare, and every second text from `place` on.

        Without a place, texts are not scored, and all asks are answers to compare.
        """
        asks = {}
        for number in range(_TWICE if place is not None else max(texts, _TWICE)):
            asks[f"greedy-{number}"] = self.ask_for(number)
        for number in range(_TWICE):
            asks[f"streamed-{number}"] = self.ask_for(number, stream=True)
            asks[f"{SEEDED}-{number}"] = self.ask_for(number, temperature=1.0, seed=number)
        for number in range(place, texts, 2) if place is not None else ():
            asks[f"text-{number}"] = self.ask_for(_TWICE + number, temperature=1.0, seed=number)
        return asks

    async def repeat(self, asks: Asks) -> dict[str, Stream]:
        """Repeat the first answers to compare; return them by label."""
        labels = [f"{kind}-{number}" for kind in ("greedy", SEEDED) for number in range(_TWICE)]
        again = await self.ask_alone({f"{label}-again": asks[label] for label in labels})
        return {label.removesuffix("-again"): answer for label, answer in again.items()}

    async def ask_alone(self, asks: Asks) -> dict[str, Stream]:
        """Send the asks one after the other, so that the server computes nothing else."""
        answers = {label: await self.talk.ask(label, ask) for label, ask in asks.items()}
        return {label: answer for label, answer in answers.items() if answer is not None}


def _scoring_ask(ids: tuple[int, ...]) -> Ask:
    """Return an ask for the logprobs of these ids as a prompt."""
    return Ask(input_ids=(ids,), max_new_tokens=1, logprobs=True, logprob_start=0, top_logprobs=_TOP)


async def _meet(plan: Plan, part: int) -> dict[str, _Side]:
    """Identify a target; return a side for each dialect, those that score prompts first. Raises
    UsageError.
    """
    reached = await reach(plan)
    found, sender = reached.found, reached.sender
    if not found.speaks:
        raise UsageError(found.diagnosis)
    sides = {}
    for dialect in found.speaks:
        talk = Conversation(_SCENARIO, dialect, sender, found.advertised, Transcript(), found.model)
        scores = not talk.chat and talk.can_say(_scoring_ask(_prompt(0, part)))
        sides[dialect.name] = _Side(talk, scores, part)
    return dict(sorted(sides.items(), key=lambda side: not side[1].scores))


def _written(answer: Stream | None) -> Scoring:
    """Return the logprobs of the ids that an answer generated."""
    choice = only_choice(answer)
    if choice is None:
        return ()
    return [position for _, reported in reported_along(choice) for position in reported.positions]


def _prefilled(answer: Stream | None, ids: tuple[int, ...]) -> Scoring:
    """Return the logprobs of the ids at the end of an answer's prompt; empty if they belong to other ids."""
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
    """Return the generated ids of an answer, from its logprobs; empty if they lack ids."""
    ids = [position.sampled.id for position in scoring if position.sampled is not None]
    return tuple(ids) if len(ids) == len(scoring) and all(type(token) is int for token in ids) else ()


def _keeps_seeds(first: Mapping[str, Stream], again: Mapping[str, Stream]) -> bool | None:
    """True if repeated samples with a seed are equal; None if there are none."""
    # Some endpoints do not support a seed, so their samples have none.
    labels = [label for label in again if label.startswith(SEEDED) and again[label].asked.seed is not None]
    kept = [_ids(_written(first.get(label))) == _ids(_written(again[label])) for label in labels]
    return all(kept) if kept else None


async def _scored(sides: Sequence[_Side], first: Sequence[Mapping[str, Stream]], texts: int) -> list[Text]:
    """Return all texts with the scores of both sides, and the first texts with repeated scores."""
    written = {number: _written(first[number % 2].get(f"text-{number}")) for number in range(texts)}
    ids = {number: found for number, scoring in written.items() if (found := _ids(scoring))}
    prompts = {number: _prompt(_TWICE + number, sides[0].part) for number in ids}
    asks = {f"scored-{number}": _scoring_ask(prompts[number] + ids[number]) for number in ids}
    again = {f"{label}-again": asks[label] for label in list(asks)[:_SCORED_AGAIN]}
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
        )
        for number in ids
    ]


def _as_written(first: Sequence[Mapping[str, Stream]], again: Sequence[Mapping[str, Stream]]) -> list[Text]:
    """Return the greedy answers of both sides as texts, up to the first difference."""
    labels = [label for label in first[0] if label.startswith("greedy")]
    read = [
        [(_written(side.get(label)), _written(repeated.get(label))) for label in labels]
        for side, repeated in zip(first, again, strict=True)
    ]
    return [
        Text(0, common(ours, theirs), (our_again, their_again))
        for (ours, our_again), (theirs, their_again) in zip(*read, strict=True)
    ]


async def ask_twins(plans: tuple[Plan, Plan], tokens: int, part: int = 0) -> TwinTally:
    """Send the same requests to both targets, let each score the texts of both, and return the comparison.

    At least `tokens` tokens are scored. Each part has its own prompts. Raises UsageError.
    """
    met = await together(*(_meet(plan, part) for plan in plans))
    shared = next(([name, name] for name in met[0] if name in met[1]), [next(iter(side)) for side in met])
    sides = [side[name] for side, name in zip(met, shared, strict=True)]
    scores = all(side.scores for side in sides)
    texts = -(-tokens // TEXT_TOKENS)
    asks = [side.asks(place if scores else None, texts) for place, side in enumerate(sides)]
    first = await together(*(side.talk.ask_all(given) for side, given in zip(sides, asks, strict=True)))
    again = await together(*(side.repeat(given) for side, given in zip(sides, asks, strict=True)))
    scored = await _scored(sides, first, texts) if scores else []
    if not any(text.scores[0] and text.scores[1] for text in scored):
        scored = _as_written(first, again)
    first_side, other = (
        TwinSide(plan.settings.target, side.talk.model, side.talk.dialect.name, _keeps_seeds(given, repeated))
        for plan, side, given, repeated in zip(plans, sides, first, again, strict=True)
    )
    ours, theirs = (side.talk.transcript.streams for side in sides)
    return tally_twins((first_side, other), (ours, theirs), scored)
