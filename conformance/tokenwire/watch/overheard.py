"""What was overheard of one exchange, as the traffic leaves it behind: nothing in it is looked at yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenwire.wire.exchange import Exchange, Read
from tokenwire.wire.redaction import Mask, redact_body, redact_reads, redact_settings


@dataclass(frozen=True)
class Overheard:
    """An exchange with all credentials, and its reads beside it. The judge takes the credentials out before
    it judges and before it keeps anything: looking for them takes longer than passing bytes on.
    """

    exchange: Exchange
    times: Sequence[float]
    pieces: Sequence[bytes]

    @property
    def size(self) -> int:
        """Bytes of both bodies."""
        return len(self.exchange.request.raw_body or b"") + sum(map(len, self.pieces))

    def redacted(self) -> Exchange:
        """The exchange, without the credentials in it."""
        told = self.exchange
        mask = Mask.of(told.request)
        by_name = redact_settings if told.request.method == "GET" else redact_body
        return replace(
            told,
            request=mask.whole_request(told.request),
            headers=mask.headers(told.headers),
            reads=redact_reads(tuple(map(Read, self.times, self.pieces)), by_name, mask.body),
            detail=mask.text(told.detail),
        )
