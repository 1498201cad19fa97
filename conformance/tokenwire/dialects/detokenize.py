"""Requests for the text of token ids, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.wire import strict_json
from tokenwire.wire.exchange import ExchangeHead, HttpRequest, RequestHead
from tokenwire.wire.json_pointer import ABSENT, Pointer, find, put

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Detokenize:
    """A server family's request for the text of ids. Made from the `detokenize` part of a dialect."""

    name: str
    """The family."""
    path: str
    tokens: Pointer
    text: Pointer
    batches: bool
    """Whether a list of lists is answered by a list of texts."""
    skip_special_tokens: Pointer | None = None
    """None: the endpoint takes no such flag, and always spells special tokens out."""

    def request(self, many: Sequence[Ids], *, skip_special_tokens: bool) -> HttpRequest:
        """Ask for the texts of some ids; of one only, where the endpoint takes no batches."""
        body: dict[str, Any] = {}
        tokens = [list(ids) for ids in many]
        put(body, self.tokens, tokens if self.batches else tokens[0])
        if self.skip_special_tokens is not None:
            put(body, self.skip_special_tokens, skip_special_tokens)
        return HttpRequest("POST", self.path, body)

    def is_asked_by(self, request: RequestHead) -> bool:
        """True if a request is one of these; the path may begin with a version, as in `/v1/detokenize`."""
        path = request.path.partition("?")[0]
        return request.method == "POST" and path in {self.path, f"/v1{self.path}"}

    def texts(self, head: ExchangeHead) -> dict[tuple[Ids, bool], str]:
        """Return the texts in an answer; empty if it has none."""
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
            # SGLang leaves special tokens out by default.
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
