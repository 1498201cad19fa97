"""A record cut in two: what token-in-token-out clients do with a partial rollout."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, scenario, token_ids
from tokenwire.dialects.control import Action
from tokenwire.scenarios.forms import new_id

_BUDGET = 24
_CUTS = (1, 7, 16)


@scenario(chat=False)
async def _continuation(talk: Conversation) -> None:
    """The prompt with the first output ids appended. The answer must continue as the whole answer did."""
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=_BUDGET, ignore_eos=True)
    whole = token_ids(await talk.ask("whole", ask))
    if len(whole) == _BUDGET:
        asks = {
            k: replace(ask, input_ids=((*PROMPT, *whole[:k]),), max_new_tokens=_BUDGET - k) for k in _CUTS
        }
        await talk.ask_all({f"after-{k}": ask for k, ask in asks.items()})


_ADDED = ((40, 11), (97,))
"""The additions of the next turns to the conversation, as ids."""


@scenario(chat=False)
async def _turns(talk: Conversation) -> None:
    """Three turns as ids. Each prompt is the previous prompt, its output and something new. The returned ids
    begin with all ids of the previous turn.
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
    """Two turns in a session, and a stream that branches off. The second turn is sent twice: as a turn and as
    a complete prompt.
    """
    session, first, history = new_id(), new_id(), talk.dialect.request.history
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
    for again in ("", "-again"):  # a difference counts only between answers that were repeated
        await talk.ask(f"second{again}", second)
        await talk.ask(f"spelled{again}", spelled)
    await talk.call("close", end)
