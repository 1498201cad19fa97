"""A rollout worker: joins streams of `/generate` in either mode, and refuses what it cannot train on."""

from driver import torture
from httpx_sse_client import events_of

LOGPROBS = "output_token_logprobs"


def join(choice, event, cumulative):
    """Add an event to what is held of its choice, or put it in its place."""
    meta = event["meta_info"]
    if choice["finish"] or not all(type(token) is int and token >= 0 for token in event["output_ids"]):
        raise ValueError(f"{event} comes behind the finish, or has an id that is none")
    if cumulative:
        choice |= {"text": "", "output_ids": [], "series": {}}
    choice["text"] += event["text"]
    choice["output_ids"] += event["output_ids"]
    for name in {LOGPROBS, "margin"} & meta.keys():
        choice["series"].setdefault(name, []).extend(meta[name])
    held = [choice["output_ids"], *choice["series"].values()]
    if {len(entries) for entries in held} != {meta["completion_tokens"]}:
        raise ValueError(f"the server counts {meta['completion_tokens']} tokens, and {held} are held")
    for token, entry in zip(held[0], choice["series"].get(LOGPROBS, ()), strict=False):
        if entry[0] > 0 or entry[1] != token:
            raise ValueError(f"{entry} is not a logprob of {token}")
    choice["finish"] = (meta["finish_reason"] or {}).get("type")
    choice["weight_versions"] = meta.get("weight_versions")


def hold(base, case):
    held = {}
    for event in events_of(base, case):
        empty = {"text": "", "output_ids": [], "series": {}, "finish": None}
        join(held.setdefault(event.get("index", 0), empty), event, "cumulative" in case["door"])
        if case["leave"]:
            return {"choices": []}
    if sorted(held) != list(range(case["request"]["sampling_params"].get("n", 1))):
        raise ValueError(f"choices {sorted(held)} came")
    return {"choices": [report(index, **choice) for index, choice in held.items()]}


def report(index, series, **choice):
    logprobs = [entry[0] for entry in series.pop(LOGPROBS, ())]
    return {"index": index, **choice, "logprobs": logprobs, "customized_info": series}


if __name__ == "__main__":
    torture(hold, "sglang-generate-cumulative", "sglang-generate-incremental")
