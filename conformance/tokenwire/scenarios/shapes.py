"""Requests in the shapes of usual clients."""

from tokenwire.ask import Budget
from tokenwire.asking.scenario import Conversation, scenario
from tokenwire.dialects.markup import load_markup
from tokenwire.dialects.shapes import load_shapes
from tokenwire.wire.exchange import HttpRequest

_BEHIND = ({"role": "system", "content": "Be brief. A reminder."},)
"""As much as the shapes have before the words."""
_MARGIN = 8


@scenario(chat=True, parrot=True)
async def _usual_shapes(talk: Conversation) -> None:
    """Requests in the shapes of usual SDKs and coding agents, and plain ones with the same words. A parrot
    says a text with reasoning, one with a call, and JSON. A quick run sends the streamed ones.
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
