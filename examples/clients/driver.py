"""What all adapters share: ask for each case, and post what the client holds in the end."""

import json
import os
import signal
import urllib.request

LIMIT_S = int(os.environ.get("TOKENWIRE_LIMIT_S", "60"))
"""A case that takes longer is given up, and reported as an error."""
URL = os.environ.get("TOKENWIRE_URL", "http://127.0.0.1:8000")


def fetch(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(URL + path, data), timeout=60) as answer:
        return json.load(answer)


def held_choice(index, text, finish, reasoning="", calls=()):
    """What a client holds of a choice; a call is its id, its name and its arguments."""
    named = [dict(zip(("id", "name", "arguments"), call, strict=True)) for call in calls]
    return {"index": index, "text": text, "reasoning": reasoning, "calls": named, "finish": finish}


def token_counts(prompt, completion):
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def give_up(*_):
    raise TimeoutError(f"not read in {LIMIT_S} s")


def torture(hold, *doors):
    """Let `hold(base, case)` ask for each case of some doors; it gives what the client holds in the end."""
    signal.signal(signal.SIGALRM, give_up)
    for door in doors:
        for case in fetch(f"/tokenwire/cases?door={door}"):
            signal.alarm(LIMIT_S)
            try:
                held = hold(URL + case["base"], case)
            except Exception as error:  # whatever a client raises, its caller knows of
                held = {"error": f"{type(error).__name__}: {error}"[:500]}
            signal.alarm(0)
            fetch(f"/tokenwire/report/{door}/{case['case']}", held)
