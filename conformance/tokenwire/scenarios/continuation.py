"""Scenarios that continue an answer with its ids as a prompt, as clients with partial rollouts do."""

import asyncio
from dataclasses import replace

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, scenario, token_ids
from tokenwire.dialects.control import Action
from tokenwire.scenarios.abort import abort_after, long_ask

_BUDGET = 24
_CUTS = (1, 7, 16)
_LONG = 400
"""More tokens than a server can generate while an abort is on its way."""


@scenario(chat=False)
async def _continuation(talk: Conversation) -> None:
    """The prompt with the first output ids appended.

    The new answer must continue like the complete answer.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=_BUDGET, ignore_eos=True)
    whole = token_ids(await talk.ask("whole", ask))
    if len(whole) == _BUDGET:
        asks = {
            k: replace(ask, input_ids=((*PROMPT, *whole[:k]),), max_new_tokens=_BUDGET - k) for k in _CUTS
        }
        await talk.ask_all({f"after-{k}": ask for k, ask in asks.items()})


_ADDED = ((40, 11), (97,))
"""The ids that the next turns add to the conversation."""


@scenario(chat=False)
async def _turns(talk: Conversation) -> None:
    """Three turns as ids.

    Each prompt is the previous prompt, its output and something new. The returned ids begin with all ids of
    the previous turn.
    """
    prompt: tuple[int, ...] = PROMPT
    for number, added in enumerate((*_ADDED, ()), 1):
        ask = Ask(input_ids=(prompt,), max_new_tokens=6, ignore_eos=True, return_prompt_token_ids=True)
        ids = token_ids(await talk.ask(f"turn-{number}", ask))
        if not ids:
            return
        prompt = (*prompt, *ids, *added)


@scenario(chat=False)
async def _session(talk: Conversation) -> None:
    """Two turns in a session, and a stream that branches off.

    The second turn is sent twice: as a turn and as a complete prompt.
    """
    session, first, history = talk.new_id(), talk.new_id(), talk.dialect.request.history
    field = str(history[-1]) if history else ""
    start, end = (talk.control.session_request(action, session) for action in (Action.OPEN, Action.CLOSE))
    opened = await talk.call("open", start) if start is not None and field else None
    if opened is None or not opened.done or end is None:
        return
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=6, ignore_eos=True)
    begun = replace(ask, request_id=first, raw={field: {"id": session}})
    turn = replace(ask, raw={field: {"id": session, "rid": first}})
    ids = token_ids(await talk.ask("first", begun))
    second = replace(turn, input_ids=_ADDED[:1])
    spelled = replace(ask, input_ids=((*PROMPT, *ids, *_ADDED[0]),))
    await talk.ask("branch", replace(turn, input_ids=_ADDED[1:], stream=True))
    for again in ("", "-again"):  # differences count only between answers that were repeated
        await talk.ask(f"second{again}", second)
        await talk.ask(f"spelled{again}", spelled)
    await talk.call("close", end)


_MOST_TRIES = 20
"""The most tries to send a turn until the server has removed the aborted one."""


@scenario(chat=False, budget=Budget.STANDARD)
async def _session_abort(talk: Conversation) -> None:
    """A session in which each turn continues the latest one: two turns, an aborted turn, and a turn after it.

    The last turn is sent again as a complete prompt.
    """
    session, history = talk.new_id(), talk.dialect.request.history
    field = str(history[-1]) if history else ""
    start = talk.control.session_request(Action.OPEN, session, appends=True) if field else None
    end = talk.control.session_request(Action.CLOSE, session)
    opened = await talk.call("open", start) if start is not None else None
    if opened is None or not opened.done or end is None:
        return
    ask = Ask(
        input_ids=(PROMPT,), max_new_tokens=6, ignore_eos=True, raw={field: {"id": session, "rid": None}}
    )
    record: tuple[int, ...] = ()
    for label, ids in (("first", PROMPT), ("second", _ADDED[0])):
        made = token_ids(await talk.ask(label, replace(ask, input_ids=(ids,))))
        if not made:
            return
        record = (*record, *ids, *made)
    aborted = replace(long_ask(talk, _LONG), raw=ask.raw, input_ids=((60, 61),), request_id=talk.new_id())
    await abort_after(talk, "aborted", aborted, 2)
    for number in range(1, _MOST_TRIES):
        third = await talk.ask(f"third-{number}", replace(ask, input_ids=(_ADDED[1],)))
        if third is None or third.answered:
            break
        await asyncio.sleep(0.1)
    await talk.ask("spelled", replace(ask, input_ids=((*record, *_ADDED[1]),), raw={}))
    await talk.call("close", end)
