"""Usage: asked for at the end of a stream, in every event, and not at all."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import Conversation, scenario
from tokenwire.dialects.dialect import Unsupported
from tokenwire.scenarios.plain_ask import plain_ask


@scenario()
async def usage(talk: Conversation) -> None:
    """One request whole, and streamed with usage at the end, in every event, both, without, and with empty
    options: the counts are the same, and stand only where they were asked for.
    """
    ask = replace(plain_ask(talk), max_new_tokens=talk.fitting(16))
    streamed = replace(ask, stream=True)
    await talk.ask_all(
        {
            "whole": ask,
            "whole-again": ask,
            "stream": streamed,
            "at-the-end": replace(streamed, usage=True),
            "everywhere": replace(streamed, usage=True, continuous_usage=True),
            "only-on-the-way": replace(streamed, continuous_usage=True),
            **_without_options(talk, streamed),
        }
    )


def _without_options(talk: Conversation, streamed: Ask) -> dict[str, Ask]:
    """A stream with empty `stream_options`, where the endpoint has them: they ask for nothing."""
    request = talk.dialect.render(replace(streamed, usage=True), talk.model)
    options = "stream_options"
    known = not isinstance(request, Unsupported) and options in request.body
    return {"no-options": replace(streamed, raw={options: {}})} if known else {}


@scenario(chat=True)
async def usage_of_samples(talk: Conversation) -> None:
    """Two samples of one conversation: usage counts the tokens of both, and the prompt once."""
    ask = Ask(
        messages=({"role": "user", "content": "Name a colour."},), max_new_tokens=6, n=2, temperature=1.0
    )
    await talk.ask_all({"whole": ask, "stream": replace(ask, stream=True, usage=True)})
