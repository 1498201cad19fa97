"""httpx-sse at the chat and completions endpoints, with the joining code that most clients write."""

import json
from collections import deque

import httpx
from driver import torture
from httpx_sse import connect_sse

CLIENT = httpx.Client(timeout=60)
EMPTY = {"text": "", "reasoning": "", "finish": None}


def events_of(base, case):
    with connect_sse(CLIENT, "POST", base + case["path"], json=case["request"]) as source:
        source.response.raise_for_status()
        events = source.iter_sse()
        for sse in events:
            if sse.data == "[DONE]":
                deque(events, 0)  # an answer that is read to its end leaves the connection open
                return
            event = json.loads(sse.data)
            if "error" in event:
                raise ValueError(event["error"]["message"])
            yield event


def hold(base, case):
    held, usage = {}, None
    for event in events_of(base, case):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            join(held.setdefault(choice["index"], dict(EMPTY, calls={}, logprobs=[])), choice)
        if case["leave"] and any(choice["text"] for choice in held.values()):
            break
    choices = [
        {"index": index, **choice, "calls": list(choice["calls"].values())}
        for index, choice in sorted(held.items())
    ]
    return {"choices": choices, "usage": usage, "error": None}


def join(held, choice):
    delta = choice.get("delta", choice)
    held["text"] += delta.get("content") or choice.get("text") or ""
    held["reasoning"] += delta.get("reasoning_content") or delta.get("reasoning") or ""
    for piece in delta.get("tool_calls") or ():
        call = held["calls"].setdefault(piece["index"], {"id": None, "name": None, "arguments": ""})
        function = piece.get("function") or {}
        call["id"] = piece.get("id") or call["id"]
        call["name"] = function.get("name") or call["name"]
        call["arguments"] += function.get("arguments") or ""
    tokens = (choice.get("logprobs") or {}).get("content") or ()
    held["logprobs"] += [token["logprob"] for token in tokens]
    held["finish"] = choice.get("finish_reason") or held["finish"]


if __name__ == "__main__":
    torture(hold, "openai-chat", "sglang-chat", "vllm-chat", "openai-completions")
