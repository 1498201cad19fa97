"""Values that optional parts keep with a request, each under a key of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from tokenwire_reference.core.kv import StoredPage

if TYPE_CHECKING:
    from tokenwire_reference.core.request import Request

_Value = TypeVar("_Value")


class Extra(Generic[_Value]):
    """The key of one value in `Request.extras`. A part that needs such a value defines its key."""

    def __init__(self, name: str, default: _Value) -> None:
        self._name = name
        self._default = default

    def __repr__(self) -> str:
        return self._name

    def of(self, request: Request) -> _Value:
        """Return the value of a request, or the default."""
        value: _Value = request.extras.get(self, self._default)
        return value

    def put(self, request: Request, value: _Value) -> None:
        request.extras[self] = value


WANTS_EMBEDDING = Extra("wants_embedding", default=False)
"""True to return the last hidden state of the prompt, without tokens."""
EMBEDDING = Extra[Sequence[float] | None]("embedding", None)
"""The embedding of length 1, once the request has finished."""
HIDDEN_ROWS = Extra[Sequence[Sequence[float]]]("hidden_rows", ())
"""The hidden states since the last token, if they are requested."""
ROUTED_EXPERTS_START = Extra[int | None]("routed_experts_start", None)
"""The first position whose experts are wanted; None for none."""
ROUTED_EXPERTS = Extra[str | None]("routed_experts", None)
"""The experts of the computed positions in base64, once the request has finished."""
HANDED_OVER = Extra[Mapping[bytes, StoredPage]]("handed_over", {})
"""Pages of the prompt that another engine has computed, by key digest, until it runs."""
