"""Faults in aborting: which requests end, what they return, and detection of clients that disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from tokenwire_faults.acts import act_at
from tokenwire_faults.answers import Json, Object, finish_type, meta_infos
from tokenwire_faults.fault import Fault
from tokenwire_reference.doors.reader import Emission

Names = Sequence[str]


@act_at("aborting")
def _abort_by_prefix(rid: str, live: Collection[str]) -> Names:
    return [name for name in live if name.startswith(rid)]


@act_at("aborting")
def _abort_does_nothing() -> Names:
    return []


@act_at("aborting")
def _abort_of_nobody_fails(rid: str, live: Collection[str], names: Names) -> Names:
    if not any(name in live for name in names):
        raise KeyError(rid)
    return names


@act_at("aborting")
def _abort_by_the_clients_id_misses_the_samples(names: Names) -> Names:
    return [] if len(names) > 1 else names


@act_at("aborting")
def _abort_by_the_clients_id_does_nothing(fault: Fault, rid: str, names: Names) -> Names:
    named = fault.request.get("request_ids")
    return names if named is None or rid in named else []


@act_at("aborting")
def _abort_of_a_sample_ends_its_siblings(rid: str, live: Collection[str], names: Names) -> Names:
    stem, mark, _ = rid.rpartition("_")
    return [name for name in live if mark and name.startswith(stem + mark)] or names


_LATER_S = 0.25
"""The delay of a late action in seconds.

Real servers act later, but this model generates a thousand tokens in a second.
"""
_AGAIN_S = (_LATER_S, 0.5, 1.0, 2.0, 4.0)
"""The delays in seconds of a repeated action.

The action is repeated because the request with the reused id may arrive late on a busy machine.
"""


@act_at("colliding")
def _id_in_use_ends_the_first(rid: str, abort: Callable[[str], None]) -> None:
    abort(rid)


@act_at("colliding")
def _id_in_use_ends_the_first_later(rid: str, abort: Callable[[str], None]) -> None:
    asyncio.get_running_loop().call_later(_LATER_S, abort, rid)


@act_at("ended")
def _id_used_again_is_aborted(rid: str, abort: Callable[[str], None]) -> None:
    for seconds in _AGAIN_S:
        asyncio.get_running_loop().call_later(seconds, abort, rid)


@act_at("taken")
def _abort_says_stop(emission: Emission) -> Emission:
    if emission.finish is None or emission.finish.type != "abort":
        return emission
    return replace(emission, finish=replace(emission.finish, type="stop"))


_LEFT = {"error": {"message": "client disconnected", "code": 499}}


@act_at("answered", "abort-is-an-error")
def _error_in_place(status: int, answer: Json) -> tuple[int, Json]:
    return (499, _LEFT) if finish_type(answer) == "abort" else (status, answer)


@act_at("events", "abort-is-an-error")
def _error_event_in_place(event: Object) -> Iterable[Object]:
    return [_LEFT if finish_type(event) == "abort" else event]


@act_at("events")
def _abort_in_the_queue_has_no_choice(event: Object) -> Iterable[Object]:
    waited = not any(info.get("completion_tokens") for info in meta_infos(event))
    return [] if finish_type(event) == "abort" and waited else [event]


@act_at("answers")
def _abort_in_the_queue_counts_nothing(answer: Json) -> None:
    for info in meta_infos(answer) if finish_type(answer) == "abort" else ():
        if not info.get("completion_tokens"):
            del info["prompt_tokens"]
