"""The smallest server that conforms: `POST /generate` over a model that makes its tokens up.

    pip install starlette uvicorn
    python examples/smallest_server.py --port 30000
    tokenwire check --target http://127.0.0.1:30000

A token is a byte, and its id the value of that byte. What a request asks for and this server does not have is
refused, never ignored.
"""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

CONTEXT, VOCABULARY = 4096, 256
FIELDS = {"input_ids", "text", "sampling_params", "stream", "rid", "return_prompt_token_ids"}
SAMPLING = {"max_new_tokens", "n", "stop", "stop_token_ids", "stream_interval", "temperature", "ignore_eos"}


class Refused(ValueError):  # noqa: N818  # the request is wrong, not the server
    """The request is refused; the message names the field."""


@dataclass(frozen=True)
class Wanted:
    """The values of a request."""

    prompts: list[list[int]]
    request_ids: list[str]
    n: int
    budget: int
    stops: list[str]
    stop_ids: list[int]
    interval: int
    stream: bool
    tells_prompt: bool
    is_list: bool


def next_id(ids: list[int]) -> int:
    """The model: a small letter that depends on all ids before it."""
    return ord("a") + (sum(ids) * 7 + len(ids) * 3 + ids[-1]) % 26


def states(wanted: Wanted, prompt: list[int], request_id: str) -> Iterator[dict[str, Any]]:
    """A choice after each of its tokens, with everything so far: its emissions in cumulative delivery."""
    ids: list[int] = []
    text, finish = "", None if wanted.budget else {"type": "length", "length": 0}
    held = max((len(stop) - 1 for stop in wanted.stops), default=0)
    while True:
        meta = {"id": request_id, "finish_reason": finish, "cached_tokens": 0}
        meta |= {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        due = (len(ids) - 1) % wanted.interval == 0  # the first token at once
        if finish or (ids and due):
            state = {"prompt_token_ids": prompt} if wanted.tells_prompt else {}
            yield {"text": text, "output_ids": list(ids), "meta_info": meta} | state
        if finish:
            return
        ids.append(next_id(prompt + ids))
        text = bytes(ids).decode()
        found = [stop for stop in wanted.stops if stop in text]
        if ids[-1] in wanted.stop_ids:
            text, finish = text[:-1], {"type": "stop", "matched": ids[-1]}
        elif found:
            text, finish = text[: text.index(found[0])], {"type": "stop", "matched": found[0]}
        elif len(ids) == wanted.budget:
            finish = {"type": "length", "length": len(ids)}
        else:  # its end may be the beginning of a stop string: that is shown when it is known not to be
            text = text[: max(len(text) - held, 0)]


def read(body: Any) -> Wanted:
    """Read the values of a request. Raises Refused: fields are not ignored, and values are not changed."""
    if not isinstance(body, dict):
        raise Refused("the body has to be a JSON object")
    sampling = {} if body.get("sampling_params") is None else body["sampling_params"]
    demand(isinstance(sampling, dict), "sampling_params", sampling)
    if ("input_ids" in body) == ("text" in body):
        raise Refused("one of input_ids and text has to be given, and not both")
    form, of_one = ("text", str) if "text" in body else ("input_ids", list)
    is_batch = isinstance(body[form], list) and all(isinstance(item, of_one) for item in body[form])
    given = body[form] if is_batch else [body[form]]
    prompts = [list(item.encode()) if isinstance(item, str) and form == "text" else item for item in given]
    demand(bool(prompts) and all(map(is_prompt, prompts)), form, body[form])
    room = CONTEXT - max(map(len, prompts))
    budget = whole_number(sampling, "max_new_tokens", 128, 0)
    demand(budget <= room, "max_new_tokens", f"{budget}, with room for {room}")
    n = whole_number(sampling, "n", 1, 1)
    temperature = 0 if sampling.get("temperature") is None else sampling["temperature"]
    demand(type(temperature) in {int, float} and temperature >= 0, "temperature", temperature)
    stops = listed(sampling, "stop", str)
    demand(all(stops), "stop", "an empty string")
    for flag, holder in (("stream", body), ("return_prompt_token_ids", body), ("ignore_eos", sampling)):
        demand(holder.get(flag) is None or type(holder[flag]) is bool, flag, holder.get(flag))
    stop_ids = listed(sampling, "stop_token_ids", int)
    demand(all(0 <= item < VOCABULARY for item in stop_ids), "stop_token_ids", stop_ids)
    if unknown := sorted((body.keys() - FIELDS) | (sampling.keys() - SAMPLING)):
        raise Refused(f"not offered here: {', '.join(unknown)}")
    return Wanted(
        prompts,
        request_ids(body.get("rid"), len(prompts), n),
        n,
        budget,
        stops,
        stop_ids,
        whole_number(sampling, "stream_interval", 0, 0) or 1,
        bool(body.get("stream")),
        bool(body.get("return_prompt_token_ids")),
        is_batch or n > 1,
    )


def demand(holds: bool, name: str, value: Any) -> None:
    if not holds:
        raise Refused(f"{name} cannot be {str(value)[:80]}")


def is_prompt(ids: Any) -> bool:
    return (
        isinstance(ids, list)
        and ids != []
        and all(type(item) is int and 0 <= item < VOCABULARY for item in ids)
    )


def whole_number(fields: dict[str, Any], name: str, default: int, least: int) -> int:
    value = default if fields.get(name) is None else fields[name]
    demand(type(value) is int and value >= least, name, value)
    return int(value)


def listed(fields: dict[str, Any], name: str, kind: type) -> list[Any]:
    """One value or a list of them."""
    value = fields.get(name)
    values = value if isinstance(value, list) else [] if value is None else [value]
    for item in values:
        demand(type(item) is kind, name, item)
    return values


def request_ids(rid: Any, prompts: int, n: int) -> list[str]:
    """The client's ids where there is one for each choice, else ids of the server's own."""
    given = rid if isinstance(rid, list) else [rid]
    if len(given) == prompts and n == 1 and all(isinstance(item, str) for item in given):
        return given
    demand(rid is None or n > 1, "rid", rid)
    return [uuid.uuid4().hex for _ in range(prompts * n)]


async def generate(request: Request) -> Response:
    try:
        wanted = read(json.loads(await request.body()))
    except (ValueError, RecursionError) as error:
        words = str(error) if isinstance(error, Refused) else "the body is not JSON"
        return JSONResponse({"error": {"message": words, "code": 400}}, 400)
    choices = [
        states(wanted, wanted.prompts[index // wanted.n], request_id)
        for index, request_id in enumerate(wanted.request_ids)
    ]
    if wanted.stream:
        return StreamingResponse(events(wanted, choices), media_type="text/event-stream")
    answers = [[*choice][-1] for choice in choices]
    return JSONResponse(answers if wanted.is_list else answers[0])


def events(wanted: Wanted, choices: list[Iterator[dict[str, Any]]]) -> Iterator[str]:
    for index, choice in enumerate(choices):
        for state in choice:
            data = state | {"index": index} if wanted.is_list else state
            yield f"data: {json.dumps(data)}\n\n"
    yield "data: [DONE]\n\n"


app = Starlette(routes=[Route("/generate", generate, methods=["POST", "PUT"])])

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The smallest server that conforms.")
    parser.add_argument("--port", type=int, default=30000)
    uvicorn.run(app, port=parser.parse_args().port)
