"""Every flag of a request, in every form of an answer: honoured, or refused."""

from dataclasses import replace

from tokenwire.ask import Budget
from tokenwire.asking.flags import flagged, plain
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario
from tokenwire.scenarios.forms import forms


@scenario(budget=Budget.STANDARD)
def _every_flag(talk: Conversation) -> Steps:
    """Each flag alone and all together, whole and streamed, for one answer, two samples and a batch: where a
    server takes a flag in one form only, an answer of another form lacks it.
    """
    ask = plain(talk.dialect)
    answers = {"one": ask, "samples": replace(ask, n=2)}
    if ask.input_ids:
        answers["batch"] = replace(ask, input_ids=(PROMPT, PROMPT[:5]))
    for label, ask in answers.items():
        for form, asked in forms(ask, label).items():
            yield {
                f"{form}-{flag}": flagged_ask for flag, flagged_ask in flagged(talk.dialect, asked).items()
            }
