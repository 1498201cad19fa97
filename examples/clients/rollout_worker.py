"""A rollout worker: joins streams of `/generate` in either mode, and refuses what it cannot train on."""

import json

import httpx
from driver import torture
from httpx_sse import connect_sse

CLIENT = httpx.Client(timeout=60)

LISTS = "output_token_logprobs"


def joined(held, event, cumulative):
    """One event added to what is held of its choice, or in its place."""
    choice = held.setdefault(
        event.get("index", 0), {"text": "", "output_ids": [], "lists": {}, "finish": None}
    )
    meta = event["meta_info"]
    named = {name: value for name, value in meta.items() if name in {LISTS, "margin"}}
    if cumulative:
        choice |= {"text": event["text"], "output_ids": event["output_ids"], "lists": named}
    else:
        choice["text"] += event["text"]
        choice["output_ids"] += event["output_ids"]
        for name, entries in named.items():
            choice["lists"].setdefault(name, []).extend(entries)
    if meta["completion_tokens"] != len(choice["output_ids"]):
        raise ValueError(
            f"{len(choice['output_ids'])} ids are held, and the server counts {meta['completion_tokens']}"
        )
    for name, entries in choice["lists"].items():
        if len(entries) != len(choice["output_ids"]):
            raise ValueError(f"{name} holds {len(entries)} entries for {len(choice['output_ids'])} ids")
    if choice["finish"]:
        raise ValueError("an event comes behind the finish")
    choice["finish"] = (meta["finish_reason"] or {}).get("type")
    choice["weight_versions"] = meta.get("weight_versions")


def hold(base, case):
    held = {}
    with connect_sse(CLIENT, "POST", base + case["path"], json=case["request"]) as source:
        source.response.raise_for_status()
        for sse in source.iter_sse():
            if sse.data == "[DONE]":
                break
            event = json.loads(sse.data)
            if "error" in event:
                raise ValueError(event["error"]["message"])
            joined(held, event, case["door"].endswith("cumulative"))
            if case["leave"]:
                break
    return {"choices": [held_of(index, choice) for index, choice in sorted(held.items())], "error": None}


def held_of(index, choice):
    lists = choice.pop("lists")
    entries = lists.pop(LISTS, None)
    logprobs = {} if entries is None else {"logprobs": [entry[0] for entry in entries]}
    return {"index": index, **choice, **logprobs, "customized_info": lists}


if __name__ == "__main__":
    torture(hold, "sglang-generate-cumulative", "sglang-generate-incremental")
