"""Scenarios that request the same answer while the server caches, chunks the prefill, preempts or batches."""

from dataclasses import replace

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario, together
from tokenwire.asking.tap import SlowReader

_BORDERS = (1, 15, 16, 17, 63, 64, 65, 127, 129, 255, 256, 257, 511, 513)
"""Prompt lengths at and near the usual sizes of pages and of prefill chunks."""
_BUDGET = 10
_AT_ONCE = 8
_TURNS = 12
"""The most rounds of requests. A server that preempts requests is noticed after two or three."""
_SCORED = Ask(ignore_eos=True, logprobs=True, top_logprobs=2)


async def _ask_scored(talk: Conversation, label: str, ask: Ask) -> Ask:
    """Send a request, without top logprobs if the endpoint has no field for them. Return the request."""
    if await talk.ask(label, ask) is None:
        ask = replace(ask, top_logprobs=0)
        await talk.ask(f"{label}-without-top", ask)
    return ask


@scenario(chat=False, budget=Budget.STANDARD)
async def _cold_and_warm(talk: Conversation) -> None:
    """New prompts, each sent twice, alternately without and with streaming.

    The cached_tokens of the second answers show the cache. Each second answer is one token shorter, and
    begins with the tokens of the first answer.
    """
    longest = talk.fitting(1 << 20, 0) - _BUDGET
    for turn, length in enumerate(length for length in _BORDERS if length <= longest):
        prompt = tuple(talk.draw.randrange(10, 250) for _ in range(length))
        ask = replace(_SCORED, input_ids=(prompt,), max_new_tokens=_BUDGET)
        ask = await _ask_scored(talk, f"cold-{length}", ask)
        warm = replace(ask, max_new_tokens=_BUDGET - 1, stream=turn % 2 == 1)
        await talk.ask(f"warm-{length}", warm)


@scenario(chat=False)
def _long_stream(talk: Conversation) -> Steps:
    """A stream with many events, one token each. A late event takes as long as an early one."""
    ask = Ask(input_ids=(tuple(range(60, 90)),), max_new_tokens=240, ignore_eos=True)
    yield {"stream": replace(ask, stream=True)}
    if talk.budget is not Budget.QUICK:
        scored = replace(ask, logprobs=True)
        yield {"whole-logprobs": scored, "stream-logprobs": replace(scored, stream=True)}


@scenario(chat=False, budget=Budget.STANDARD, alone=True)
async def _preempted(talk: Conversation) -> None:
    """Eight requests at once, alternately without and with streaming.

    A server that is configured to preempt preempts some of them, which num_retractions shows. The requests
    are repeated in another order. The repetition ends when a request without streaming, and a request with
    streaming, ran both with and without a preemption.
    """
    ask = Ask(ignore_eos=True, logprobs=True)
    hit: set[int] = set()
    spared: set[int] = set()
    for turn in range(_TURNS):
        # The prompts of each round are new, because differing answers to the same request are not compared.
        ask = replace(ask, max_new_tokens=talk.fitting(48) - turn)
        order = [(3 * turn + place) % _AT_ONCE for place in range(_AT_ONCE)]
        asks = {
            position: replace(ask, input_ids=((30 + position, *range(40, 52)),), stream=position % 2 == 0)
            for position in order
        }
        answers = await talk.ask_all({f"{position}-{turn}": ask for position, ask in asks.items()})
        for position in order:
            answer = answers.get(f"{position}-{turn}")
            if answer is None:
                continue
            preempted = any(emission.counters.get("num_retractions") for emission in answer.emissions())
            (hit if preempted else spared).add(position)
        if not hit or {position % 2 for position in hit & spared} == {0, 1}:
            return


_NEIGHBOURS = 16
_WATCHED = 32
"""The number of tokens of the request whose answers are compared."""


@scenario(chat=False, budget=Budget.STANDARD, alone=True)
async def _neighbours(talk: Conversation) -> None:
    """A request, sent twice alone, and then at the same time as sixteen requests with other prompts.

    One further request must be refused, and one has a client that stops reading. The answer to the first
    request must not change. In company it is requested with one token less, and begins with the same tokens.
    """
    ask = replace(_SCORED, input_ids=(PROMPT[::-1],), max_new_tokens=talk.fitting(_WATCHED))
    for label in ("alone", "alone-again"):
        ask = await _ask_scored(talk, label, ask)
    among = replace(ask, max_new_tokens=max(1, talk.fitting(_WATCHED) - 1))
    other = replace(ask, max_new_tokens=96, stream=True)
    # The request under test is the first of the crowd, so that it is scheduled first.
    crowd = {"among": among, "among-stream": replace(among, stream=True)}
    for position in range(_NEIGHBOURS):
        prompt = (20 + position, *PROMPT[position % 5 :])
        crowd[f"neighbour-{position}"] = replace(other, input_ids=(prompt,))
    # All servers refuse this request without harm.
    crowd["refused"] = replace(ask, wrong={"max_new_tokens": "many"})
    stalled = replace(among, stream=True, input_ids=((9, *PROMPT),))
    await together(
        *(talk.ask(label, ask) for label, ask in crowd.items()),
        talk.ask("stalled", stalled, slow_reader=SlowReader(pause_s=0.5)),
    )
