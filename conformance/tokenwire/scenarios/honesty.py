"""What the target does with the unknown: can it be believed that it lacks what it does not answer?"""

import secrets
from dataclasses import replace
from typing import Any

from tokenwire.asking.flags import plain
from tokenwire.asking.scenario import Conversation, Steps, scenario
from tokenwire.dialects.dialect import Unsupported
from tokenwire.target.honesty import UNKNOWN_FIELD, UNKNOWN_MODEL, UNKNOWN_PARAMETER, UNKNOWN_PATH
from tokenwire.wire.exchange import HttpRequest


@scenario()
def _honesty(talk: Conversation) -> Steps:
    """A field, a sampling parameter, a model and a path by names that no server can know: a server that
    answers as if nothing were amiss may have ignored other things as well.
    """
    ask = plain(talk.dialect)
    request = talk.dialect.render(ask, talk.model)
    body = {} if isinstance(request, Unsupported) else request.body
    name = f"tokenwire_{secrets.token_hex(6)}"
    unknown: dict[str, dict[str, Any]] = {UNKNOWN_FIELD: {name: True}, UNKNOWN_MODEL: {"model": name}}
    holder = next((key for key, value in body.items() if isinstance(value, dict)), None)
    if holder is not None:
        unknown[UNKNOWN_PARAMETER] = {holder: {name: True}}
    yield {label: replace(ask, raw=raw) for label, raw in unknown.items()}
    yield {UNKNOWN_PATH: HttpRequest("POST", f"/{name}", {})}
