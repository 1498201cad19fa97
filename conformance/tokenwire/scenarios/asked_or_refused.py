"""Everything that a request can ask to be told, in every form of an answer: honoured, or refused."""

from dataclasses import replace

from tokenwire.ask import Budget
from tokenwire.asking.flags import flagged, plain
from tokenwire.asking.scenario import PROMPT, Conversation, scenario


@scenario(budget=Budget.STANDARD)
async def every_flag(talk: Conversation) -> None:
    """Each flag alone and all together, whole and streamed, for one answer, two samples and a batch: where a
    server takes a flag in one form only, an answer of another form lacks it.
    """
    ask = plain(talk.dialect)
    forms = {"one": ask, "samples": replace(ask, n=2)}
    if ask.input_ids:
        forms["batch"] = replace(ask, input_ids=(PROMPT, PROMPT[:5]))
    for form, one in forms.items():
        for mode, asked in (("whole", one), ("stream", replace(one, stream=True))):
            flags = flagged(talk.dialect, asked)
            await talk.ask_all({f"{form}-{mode}-{label}": each for label, each in flags.items()})
