"""Confirmation of differences that may be random.

Two answers to the same request may differ because sampling or batching is not deterministic. Both requests
are repeated alone. If the repeated answers differ among themselves, the target is not deterministic here, and
the difference is ignored. One confirmed difference per requirement and endpoint is enough. Repeated requests
are recorded too, so a replay gives the same verdicts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from tokenwire.asking.scenario import Conversation
from tokenwire.judging.beside import GATEWAY, WORKER
from tokenwire.judging.chance import AGAIN, times_to_repeat
from tokenwire.judging.judge import Judgement, judge
from tokenwire.judging.run import Run
from tokenwire.record import Answer
from tokenwire.requirement import load_requirements
from tokenwire.target.determinism import request_of
from tokenwire.wire.exchange import HttpRequest

_AGAIN = re.compile(r"-confirm-\d+$")
_MOST = 160
"""The most requests that a run repeats for confirmation."""
ACROSS_RESPONSES, ACROSS_TARGETS = "across-responses", "across-targets"
"""Oracles of requirements that compare two answers: both of one target, or one of a worker and one of its
gateway.
"""


def _sides(judgement: Judgement, run: Run) -> list[Answer]:
    """Return the answers of the first difference that a repetition can decide.

    Empty if there is none, or if any of the violations cannot be random.
    """
    if any(not violation.by_chance for violation in judgement.violations):
        return []
    for difference in (*judgement.violations, *judgement.doubted):
        names = dict.fromkeys(place.exchange for place in (difference.place, *difference.related))
        sides = [run.by_exchange[name] for name in names if name in run.by_exchange]
        # Skip a request that is known to get different answers, because repeating it would show nothing new.
        if all(map(request_of, sides)) and not any(
            known.differing(name) for known in run.seen for name in names
        ):
            return sides
    return []


async def send_again(talk: Conversation, stream: Answer, turn: int) -> None:
    """Send the request of an answer again, under a name of its own."""
    request = stream.exchange.load().request
    if named := stream.asked.request_id:
        request = under_another_id(request, named, f"{named}-confirm-{turn}")
    await talk.ask(f"{stream.exchange.label}-confirm-{turn}", request)


def asked_again(name: str) -> bool:
    """True if this exchange name was made by `send_again`."""
    return _AGAIN.search(name) is not None


def under_another_id(request: HttpRequest, old: str, new: str) -> HttpRequest:
    """Return the request with another request id, because a server may refuse an id that was used before."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(member) for key, member in value.items()}
        if isinstance(value, list):
            return [renamed(member) for member in value]
        return new if value == old else value

    headers = tuple((name, new if value == old else value) for name, value in request.headers)
    return replace(request, body=renamed(request.body), headers=headers)


def _asked(stream: Answer) -> Hashable:
    """Return a key that is equal for answers to equal requests.

    A gateway and its worker have different keys.
    """
    scenario = stream.exchange.scenario
    return scenario if scenario in (GATEWAY, WORKER) else "", request_of(stream)


async def confirm(
    run_so_far: Callable[[], Run],
    ask_again: Callable[[Answer, int], Awaitable[None]],
    oracle: str,
    on_next: Callable[[int, int], object] = lambda _done, _total: None,
) -> None:
    """Repeat requests until each random difference is confirmed or refuted, for the requirements of one
    oracle.

    `ask_again`: sends the request of an answer again; its second argument counts the repetitions. `on_next`:
    called with the number of repeated requests so far and in total.
    """
    every = {row.id: row for row in load_requirements().values() if row.oracle == oracle}
    rows = every
    asked: Counter[Hashable] = Counter()
    while asked.total() < _MOST:
        run = run_so_far()
        turns = max(AGAIN, times_to_repeat(run.seen))
        due: dict[Hashable, Answer] = {}
        in_question = _due(judge([run], rows.values()), run, asked, turns, due)
        if not due and rows is every:
            return
        # Repeating for one requirement may change another verdict, so all requirements are judged again at
        # the end.
        rows = {name: row for name, row in rows.items() if name in in_question} if due else every
        total = asked.total() + len(due)
        for request, stream in due.items():
            on_next(asked.total(), total)
            asked[request] += 1
            await ask_again(stream, asked[request])


def _due(
    judgements: Iterable[Judgement],
    run: Run,
    asked: Mapping[Hashable, int],
    turns: int,
    due: dict[Hashable, Answer],
) -> set[str]:
    """Collect the requests to repeat in `due`; return the ids of the requirements that they decide.

    If a requirement has several differences at an endpoint, the first is repeated. The next ones are repeated
    only if the first is refuted.
    """
    waiting: dict[tuple[str, str], list[dict[Hashable, Answer]]] = defaultdict(list)
    confirmed, fell = set(), set()
    for judgement in judgements:
        sides = {_asked(side): side for side in _sides(judgement, run)}
        if not sides:
            continue
        subject = judgement.requirement.id, next(iter(sides.values())).dialect
        if any(asked[request] < turns for request in sides):
            waiting[subject].append(sides)
        elif judgement.violations and run.doubt(judgement.violations[0]) is None:
            confirmed.add(subject)
        else:
            fell.add(subject)
    for subject in waiting.keys() - confirmed:
        for sides in waiting[subject] if subject in fell else waiting[subject][:1]:
            due |= sides
    return {requirement for requirement, _ in waiting.keys() - confirmed}
