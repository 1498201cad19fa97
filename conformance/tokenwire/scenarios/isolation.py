"""One request alone, and the same among strangers."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Budget, Conversation, scenario, together
from tokenwire.asking.slow_reader import SlowReader

_NEIGHBOURS = 16
_BUDGET = 32


@scenario(chat=False, budget=Budget.STANDARD, alone=True)
async def neighbours(talk: Conversation) -> None:
    """A request twice alone, then among sixteen with other prompts: some of them long, one refused, one whose
    reader stalls. Its record stays what it was; the one in the crowd is a token shorter, and begins the same.
    """
    ask = Ask(
        input_ids=(PROMPT[::-1],),
        max_new_tokens=talk.fitting(_BUDGET),
        ignore_eos=True,
        logprobs=True,
        top_logprobs=2,
    )
    for label in ("alone", "alone-again"):
        if await talk.ask(label, ask) is None:
            ask = replace(ask, top_logprobs=0)  # the endpoint has no words for them
            await talk.ask(f"{label}-without-top", ask)
    among = replace(ask, max_new_tokens=max(1, talk.fitting(_BUDGET) - 1))
    others = {
        f"neighbour-{position}": replace(
            ask, input_ids=((20 + position, *PROMPT[position % 5 :]),), max_new_tokens=talk.fitting(96)
        )
        for position in range(_NEIGHBOURS)
    }
    crowd = {"among": among, "among-stream": replace(among, stream=True)}  # the first to get a place
    crowd |= {label: replace(each, stream=True) for label, each in others.items()}
    crowd["refused"] = replace(ask, wrong={"max_new_tokens": "many"})  # every server refuses it, and lives
    stalled = replace(among, stream=True, input_ids=((9, *PROMPT),))
    await together(
        *(talk.ask(label, each) for label, each in crowd.items()),
        talk.ask("stalled", stalled, slow_reader=SlowReader(pause_s=0.5)),
    )
