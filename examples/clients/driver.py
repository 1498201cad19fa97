"""Shared code of all adapters: ask for each case, and post what the client has in the end."""

import json
import os
import signal
import urllib.error
import urllib.request

LIMIT_S = float(os.environ.get("TOKENWIRE_LIMIT_S", "600"))
"""A case is given up if its client takes nothing more for this many processor seconds, because the speed
of a machine says nothing about a client. Some clients read all events first, and join them in minutes.
"""
URL = os.environ.get("TOKENWIRE_URL", "http://127.0.0.1:8000")


def fetch(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data), timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{path}: {json.load(error)['error']['message']}") from error


def held_choice(index, text, finish, reasoning=None, calls=None):
    """Describe what a client has of a choice; a call is its id, its name and its arguments.

    What is None is not reported, and so not judged.
    """
    held = {"index": index, "text": text, "finish": finish}
    if reasoning is not None:
        held["reasoning"] = reasoning
    if calls is not None:
        held["calls"] = [dict(zip(("id", "name", "arguments"), call, strict=True)) for call in calls]
    return held


def token_counts(prompt, completion):
    return {"prompt_tokens": prompt, "completion_tokens": completion}


class GivenUpError(BaseException):
    """Not an error of the client: its code must not catch it."""


def given_time(hold, base, case):
    """Return the result of `hold`; it is given up once it takes nothing more from the server for LIMIT_S."""
    under_way, before = True, None

    def give_up_if_stuck(*_):
        nonlocal before
        sent = fetch(f"/tokenwire/sent/{case['door']}/{case['case']}")
        if under_way and sent == before:
            raise GivenUpError
        before = sent

    signal.signal(signal.SIGPROF, give_up_if_stuck)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S, LIMIT_S)
    try:
        try:
            held = hold(base, case)
        except Exception as error:  # whatever a client raises, its caller knows of
            held = {"error": f"{type(error).__name__}: {error}"[:500]}
        under_way = False
    except GivenUpError:
        held = {"given_up": f"after {before} reads: no more was taken in {LIMIT_S:g} s of the processor"}
    under_way = False
    signal.setitimer(signal.ITIMER_PROF, 0)
    return held


def torture(hold, *doors):
    """Let `hold(base, case)` ask for each case of some doors; it gives what the client holds in the end."""
    for door in doors:
        for case in fetch(f"/tokenwire/cases?door={door}"):
            held = given_time(hold, URL + case["base"], case)
            fetch(f"/tokenwire/report/{door}/{case['case']}", held)
