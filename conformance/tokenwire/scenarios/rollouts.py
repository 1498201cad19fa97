"""What trainers ask beside logprobs: sampling masks, and arrays with a row for each token."""

from dataclasses import replace

from tokenwire.asking.flags import flagged
from tokenwire.asking.scenario import Conversation, scenario
from tokenwire.scenarios.plain_ask import plain_ask

_MASK = "return-sampling-mask"
_ARRAYS = (_MASK, "return-routed-experts", "return-hidden-states")


@scenario(chat=False)
async def token_arrays(talk: Conversation) -> None:
    """Sampling masks, routed experts and hidden states, each whole and streamed, where the endpoint knows the
    field that asks for it. Masks are asked for at temperature 1 among three ids, with a seed.
    """
    ask = replace(plain_ask(talk), max_new_tokens=talk.fitting(12, 64))
    drawn = replace(ask, temperature=1.0, top_k=3, seed=11)
    for label in _ARRAYS:
        plain = drawn if label == _MASK else ask
        asks = {
            mode: flagged(talk.dialect, replace(plain, stream=mode == "stream"))
            for mode in ("whole", "stream")
        }
        await talk.ask_all({f"{label}-{mode}": each[label] for mode, each in asks.items() if label in each})
