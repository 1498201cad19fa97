"""What all adapters have alike: ask for each case, and post what the client held in the end."""

import json
import os
import urllib.request

URL = os.environ.get("TOKENWIRE_URL", "http://127.0.0.1:8000")


def fetch(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(URL + path, data), timeout=60) as answer:
        return json.load(answer)


def told(index, text, finish, reasoning="", calls=()):
    """What a client holds of a choice; a call is its id, its name and its arguments."""
    named = [dict(zip(("id", "name", "arguments"), call, strict=True)) for call in calls]
    return {"index": index, "text": text, "reasoning": reasoning, "calls": named, "finish": finish}


def counted(prompt, completion):
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def torture(hold, *doors):
    """Let `hold(base, case)` ask for each case of some doors; it gives what the client holds in the end."""
    for door in doors:
        for case in fetch(f"/tokenwire/cases?door={door}"):
            try:
                held = hold(URL + case["base"], case)
            except Exception as error:  # whatever a client raises, it tells
                held = {"error": f"{type(error).__name__}: {error}"[:500]}
            fetch(f"/tokenwire/report/{door}/{case['case']}", held)
