"""Requests for the text of token ids, and their responses.

To an endpoint that takes one list of ids, many lists are sent in one request. The lists are joined by three
copies of a divider, which is an id with a visible text. If a list itself ends with that id, only the last
three copies in a row are the divider.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.wire import strict_json
from tokenwire.wire.exchange import ExchangeHead, HttpRequest, RequestHead
from tokenwire.wire.json_pointer import ABSENT, Pointer, find, put

Ids = tuple[int, ...]
_TIMES = 3
"""The number of copies of the divider between two lists."""
_LONGEST_SPELLING = 64
_JOINED_BY = re.compile(r"-joined-by-(\d+)-")
"""Matches the name of an exchange whose request joined lists. The name contains the divider."""


def joined_label(family: str, divider: int, number: int) -> str:
    """Return the label of a request for joined lists. It contains the divider, which a replay needs."""
    return f"{family}-joined-by-{divider}-{number}"


def can_be_joined(ids: Ids, divider: int) -> bool:
    """True if a list of ids can be distinguished from dividers before and after it."""
    return ids[:1] != (divider,) and all(run < _TIMES for run in _runs(ids, divider))


def joined(many: Sequence[Ids], divider: int) -> Ids:
    """Join lists of ids.

    There is a divider before and after each list, so that the text of each begins alike.
    """
    between = (divider,) * _TIMES
    return between + tuple(token for ids in many for token in (*ids, *between))


def _runs(ids: Ids, divider: int) -> Iterator[int]:
    """Yield the length of each run of an id; 0 between two neighbouring other ids."""
    run = 0
    for token in ids:
        if token == divider:
            run += 1
        else:
            yield run
            run = 0
    yield run


def _taken_apart(ids: Ids, divider: int) -> list[Ids]:
    """Split joined lists at the dividers; return an empty list if there is no divider at both ends."""
    if ids[:_TIMES] != (divider,) * _TIMES:
        return []
    parts: list[Ids] = []
    start = end = _TIMES
    while end < len(ids):
        run = end
        while run < len(ids) and ids[run] == divider:
            run += 1
        if run - end >= _TIMES:
            parts.append(ids[start : run - _TIMES])
            start = run
        end = max(run, end + 1)
    return parts if start == len(ids) else []


def _spelling(text: str, count: int) -> str:
    """Return the text of the divider, if a joined text begins with three copies of it; otherwise empty."""
    for size in range(1, _LONGEST_SPELLING):
        piece = text[:size]
        if text.startswith(piece * _TIMES) and text.count(piece) == count:
            return piece
    return ""


@dataclass(frozen=True)
class Detokenize:
    """The detokenize endpoint of a server family, from the `detokenize` part of a dialect's table."""

    name: str
    """The name of the server family."""
    path: str
    tokens: Pointer
    text: Pointer
    batches: bool
    """True if a request may have a list of lists; the response is then a list of texts."""
    skip_special_tokens: Pointer | None = None
    """The request field that skips special tokens; None if the text always includes them."""

    def request(self, many: Sequence[Ids], *, skip_special_tokens: bool) -> HttpRequest:
        """Return a request for the texts of the lists of ids in `many`.

        If the endpoint takes no batches, the request has only the first list.
        """
        body: dict[str, Any] = {}
        tokens = [list(ids) for ids in many]
        put(body, self.tokens, tokens if self.batches else tokens[0])
        if self.skip_special_tokens is not None:
            put(body, self.skip_special_tokens, skip_special_tokens)
        return HttpRequest("POST", self.path, body)

    def is_asked_by(self, request: RequestHead) -> bool:
        """True if a request is for this endpoint. A prefix such as `/v1` before the path is allowed."""
        path = request.path.partition("?")[0]
        return request.method == "POST" and path in {self.path, f"/v1{self.path}"}

    def joined_texts(self, head: ExchangeHead) -> dict[tuple[Ids, bool], str]:
        """Return the texts of joined lists; empty if the response cannot be split."""
        match = _JOINED_BY.search(head.name)
        if match is None:
            return {}
        found: dict[tuple[Ids, bool], str] = {}
        for (ids, skip), text in self._texts(head).items():
            divider = int(match[1])
            pieces = text.split(_spelling(text, ids.count(divider)) or None)
            parts, place = _taken_apart(ids, divider), _TIMES
            if len(pieces) != ids.count(divider) + 1:
                return {}
            spelled = _spelling(text, ids.count(divider))
            for part in parts:
                behind = place + part.count(divider)
                found[part, skip] = spelled.join(pieces[place : behind + 1])
                place = behind + _TIMES
        return found

    def texts(self, head: ExchangeHead) -> dict[tuple[Ids, bool], str]:
        """Return the texts in a response by ids and flag; empty if its lists were joined."""
        return {} if _JOINED_BY.search(head.name) else self._texts(head)

    def _texts(self, head: ExchangeHead) -> dict[tuple[Ids, bool], str]:
        """Return the texts in a response, by ids and flag. Joined lists are not split."""
        if not self.is_asked_by(head.request) or head.status != 200:
            return {}
        exchange = head.load()
        try:
            answer = strict_json.loads(exchange.body.decode())
        except ValueError:
            return {}
        body = exchange.request.body
        tokens, texts = find(body, self.tokens), find(answer, self.text)
        skip = False
        if self.skip_special_tokens is not None:
            # SGLang skips special tokens by default.
            skip = find(body, self.skip_special_tokens) in (True, None, ABSENT)
        if isinstance(texts, str):
            tokens, texts = [tokens], [texts]
        if not isinstance(tokens, list) or not isinstance(texts, list) or len(tokens) != len(texts):
            return {}
        return {
            (tuple(ids), skip): text
            for ids, text in zip(tokens, texts, strict=True)
            if isinstance(text, str) and isinstance(ids, list) and all(type(token) is int for token in ids)
        }
