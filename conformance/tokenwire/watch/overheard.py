"""What was overheard of one exchange, as the traffic leaves it behind: nothing in it is looked at yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenwire.watch.room import Body
from tokenwire.wire.exchange import Exchange, Read
from tokenwire.wire.redaction import Mask, redact_body, redact_reads, redact_settings


@dataclass(frozen=True)
class Overheard:
    """An exchange with all credentials, without its reads; its body lies in the room."""

    exchange: Exchange
    body: Body

    @property
    def size(self) -> int:
        """Bytes of both bodies."""
        return len(self.exchange.request.raw_body or b"") + sum(self.body.lengths)


def redacted(told: Exchange, times: Sequence[float], pieces: Sequence[bytes]) -> Exchange:
    """An exchange with its reads and without the credentials in it. The judge's process does this before it
    judges and before it keeps anything: looking for them takes longer than passing bytes on.
    """
    mask = Mask.of(told.request)
    by_name = redact_settings if told.request.method == "GET" else redact_body
    return replace(
        told,
        request=mask.whole_request(told.request),
        headers=mask.headers(told.headers),
        reads=redact_reads(tuple(map(Read, times, pieces)), by_name, mask.body),
        detail=mask.text(told.detail),
    )
