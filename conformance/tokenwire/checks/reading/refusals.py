"""Refusals: requests that were refused or should have been, and the messages of errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tokenwire.checks.about import is_error
from tokenwire.checks.check import Target
from tokenwire.checks.reading.bad_values import (
    meaningless_values,
    names_unknown_ids,
    unknown_prompt_ids,
    unreadable_body,
)
from tokenwire.dialects.dialect import dialect_of, policy_of
from tokenwire.record import Answer, Stream, fact, integer
from tokenwire.target.death import ORDINARY, UNSATISFIABLE
from tokenwire.wire.exchange import BUSY

ABOUT_ACCESS_OR_LOAD = frozenset({401, 403, 407, 408, 429, 499, 503})
"""Statuses that a server or gateway gives before it parses a request, because of access or load."""
NOT_ABOUT_THE_REQUEST = ABOUT_ACCESS_OR_LOAD | {404, 405}
"""Statuses that do not depend on the content of the request: those about access and load, and 404 and 405,
which are about the path.
"""


def words_of(error: object) -> str:
    """Return the message of an error body. Empty if it has none."""
    if isinstance(error, str):
        return error.strip()
    if isinstance(error, Mapping):
        stated = (words_of(error[name]) for name in ("message", "error", "detail") if name in error)
        return next((words for words in stated if words), "")
    return ""


def _is_refusal(code: int | None) -> bool:
    return code is not None and 400 <= code < 500 and code not in NOT_ABOUT_THE_REQUEST


def _refused_in_band(stream: Answer) -> bool:
    """True if a stream refuses its request with a 4xx code, after status 200.

    The code is in an error event without a choice, or in an abort of each choice. A server that sends status
    200 before it parses the request cannot refuse it by the status.
    """
    if not stream.choices:
        return _is_refusal(_code_in_band(stream))
    finishes = (choice.finish for choice in stream.choices)
    return all(f is not None and is_error(f) and _is_refusal(integer(f.code)) for f in finishes)


def _code_in_band(stream: Answer) -> int | None:
    """Return the status code of a stream's error event, or of its error type. None if it has neither."""
    error = stream.error
    if not stream.asked.stream or stream.exchange.status != 200 or not isinstance(error, Mapping):
        return None
    nested = error.get("error")
    shown = nested if isinstance(nested, Mapping) else error
    code, dialect = integer(shown.get("code")), dialect_of(stream)
    types = dialect.error_types if dialect is not None else {}
    return types.get(str(shown.get("type"))) if code is None else code


def put_off(stream: Answer) -> bool:
    """True if the server reported, by a status or an error event, that it has no capacity for the request."""
    return stream.exchange.busy or _code_in_band(stream) in BUSY


def was_refused(stream: Answer) -> bool:
    """True if the server refused a request, by its status or by an error in the stream."""
    by_status = stream.refused and stream.exchange.status not in NOT_ABOUT_THE_REQUEST
    return by_status or _refused_in_band(stream)


def asks_for_nothing(stream: Stream) -> bool:
    ids = stream.asked.input_ids
    return ids is not None and not (ids and all(ids))


def _are_ids(values: Collection[object]) -> bool:
    return {*map(type, values)} <= {int}


def _malformed(value: object) -> bool:
    """True if a JSON value is neither a list of integers nor a list of such lists."""
    if not isinstance(value, (list, tuple)):
        return True
    if all(isinstance(row, (list, tuple)) for row in value):
        return not all(map(_are_ids, value))
    return not _are_ids(value)


def sent_malformed_ids(stream: Stream) -> bool:
    """True if the request's field for ids contains something other than ids.

    If the endpoint takes ids or text in this field, a text is correct.
    """
    stated = stream.asked.sent.get("input_ids")
    mixed = policy_of(stream).mixed_prompts
    return stated is not None and not mixed and any(v is not None and _malformed(v) for v in stated.values)


@fact(Stream)
def _misshapen(stream: Stream) -> bool:
    """True if a request is wrong on every server, whatever its vocabulary."""
    malformed = asks_for_nothing(stream) or sent_malformed_ids(stream)
    return malformed or bool(unreadable_body(stream.exchange.request)) or any(meaningless_values(stream))


def is_bad(stream: Answer, target: Target) -> bool:
    """True if a request was refused, or should have been refused."""
    return was_refused(stream) or _misshapen(stream) or names_unknown_ids(stream, target)


def refused_as_bad(stream: Answer, target: Target) -> bool:
    """True if a request was refused, and should have been refused."""
    return was_refused(stream) and (_misshapen(stream) or names_unknown_ids(stream, target))


def cannot_be_satisfied(stream: Answer) -> bool:
    """True if a request may demand more tokens than a text that satisfies its constraint can have.

    The possible lengths cannot be computed for every constraint, so each constraint with a minimum length
    counts. A server may mask every id for such a request, so that it has no id to choose.
    """
    asked = stream.asked
    return bool(asked.constraints and (asked.min_new_tokens or asked.ignore_eos))


def suspicion(stream: Answer, target: Target) -> int:
    """Return the likelihood rank of a request as the cause of a server's death; 0 is the most likely."""
    if any(unknown_prompt_ids(stream.asked, target.advertised.vocab_size)):
        return 0
    if _misshapen(stream) or names_unknown_ids(stream, target):
        return 1
    return UNSATISFIABLE if cannot_be_satisfied(stream) else ORDINARY
