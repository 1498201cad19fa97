"""Scenarios for a gateway and its worker: the same requests to both, and a worker that breaks off."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.flags import flagged
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario
from tokenwire.dialects.control import Action
from tokenwire.scenarios.forms import forms, worded

_FORCED = 40
_LONG = 64
"""More tokens than two events contain."""


def _sampled_otherwise(ask: Ask) -> dict[str, Ask]:
    """Return variants of the request by label, each with one sampling field under test.

    Biases force an id in some variants, so that the answer would be known if a gateway dropped the field
    under test.
    """
    forced = replace(ask, logit_bias={_FORCED: 100.0})
    stopped = replace(forced, ignore_eos=False, stop_token_ids=(_FORCED,))
    warm = replace(ask, temperature=1.0)
    return {
        "biased": forced,
        "stop-id": stopped,
        "least-tokens": replace(stopped, min_new_tokens=4),
        "penalised": replace(ask, logit_bias={_FORCED: 20.0}, frequency_penalty=2.0, max_new_tokens=32),
        "top-k": replace(warm, top_k=1),
        "min-p": replace(warm, top_k=1, min_p=1.0),
        "kept-specials": replace(ask, skip_special_tokens=False),
    }


@scenario(worker=True)
def _gateway(talk: Conversation) -> Steps:
    """Requests with everything that a gateway must pass on, sent to the gateway and to its worker.

    They have each flag, without and with streaming, every sampling field, several choices and prompts, and a
    text prompt. Some are requests that must be refused.
    """
    ids = Ask(input_ids=(PROMPT,), max_new_tokens=12, ignore_eos=True)
    words = replace(worded(talk, "Tell me about the sea."), max_new_tokens=12)
    asks = forms(words, again=True) | forms(ids, "ids")
    for form, ask in (("words", words), ("ids", ids)):
        for label, flagged_ask in flagged(talk.dialect, ask).items():
            asks[f"{form}-{label}-whole"] = flagged_ask
            if flagged_ask.top_logprobs or flagged_ask.logprob_start is not None:
                # The same request repeated shows how much numbers vary.
                asks[f"{form}-{label}-again"] = flagged_ask
        for label, flagged_ask in flagged(talk.dialect, replace(ask, stream=True)).items():
            asks[f"{form}-{label}-stream"] = flagged_ask
    asks |= forms(replace(words, n=2, logprobs=True), "samples")
    asks |= forms(replace(ids, input_ids=(PROMPT, PROMPT[:5]), logprobs=True), "batch")
    for label, ask in _sampled_otherwise(ids).items():
        asks |= {f"{label}-whole": ask, f"{label}-again": ask, f"{label}-stream": replace(ask, stream=True)}
    run = talk.new_id()
    asks["named"] = replace(ids, request_id=f"{run}-whole")
    asks["named-stream"] = replace(ids, request_id=f"{run}-stream", stream=True)
    longer = replace(ids, max_new_tokens=32, stream=True)
    asks |= {f"interval-{interval}": replace(longer, stream_interval=interval) for interval in (1, 8)}
    asks |= {"refused-budget": replace(ids, wrong={"max_new_tokens": "many"})}
    asks |= {"refused-temperature": replace(ids, wrong={"temperature": "warm"})}
    yield asks


@scenario(worker=True, alone=True)
async def _cut_worker(talk: Conversation) -> None:
    """A stream through a gateway whose worker breaks off after two events, and a request after it.

    The proxy `tokenwire cut` between gateway and worker cuts the stream. Without the proxy, nothing is sent.
    """
    words = replace(worded(talk, "Tell me about the sea."), max_new_tokens=talk.fitting(_LONG))
    cut = await talk.call_worker("cut", Action.CUT)
    if cut is None or not cut.done:
        return
    await talk.ask("stream", replace(words, stream=True))
    await talk.call_worker("spare", Action.SPARE)
    await talk.ask("after", words)
