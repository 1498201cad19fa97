"""Scenarios with requests like those of common clients."""

from tokenwire.ask import Budget
from tokenwire.asking.scenario import Conversation, scenario
from tokenwire.dialects.markup import load_markup
from tokenwire.dialects.shapes import load_shapes
from tokenwire.wire.exchange import HttpRequest

_BEHIND = ({"role": "system", "content": "Be brief. A reminder."},)
"""Messages as long as those that the clients send before the prompt."""
_MARGIN = 8


@scenario(chat=True, parrot=True)
async def _usual_shapes(talk: Conversation) -> None:
    """Requests like those of common SDKs and coding agents, and plain ones with the same prompts. A parrot
    outputs a text with reasoning, one with a call, and JSON. With the budget quick, only streams are sent.
    """
    speaker, path = talk.parrot, talk.dialect.endpoint.path
    if speaker is None:
        return
    think, form = load_markup()[0]["think"], load_markup()[1][talk.tool_calls or "hermes"]
    thought = f"{think.opens}\nLet me see.\n{think.closes}\n\n"
    texts = {
        "content": f"{thought}The answer is 4.",
        "call": f"{thought}Looking.\n{form.spelled(('get_weather', {'city': 'Paris'}))}",
        "json": '{"city": "Paris"}',
    }
    requests = {}
    for name, shape in load_shapes().items():
        script = (*speaker.encode(texts[shape.says]), speaker.end)
        words = speaker.reply(script, "user", _BEHIND)
        sent = shape.plain or shape.body.get("stream") or talk.budget is not Budget.QUICK
        if shape.path == path and words is not None and sent:
            body = shape.written(words, talk.model or "default", len(script) + _MARGIN)
            requests[name] = HttpRequest(talk.dialect.endpoint.methods[0], path, body=body)
    await talk.ask_all(requests)
