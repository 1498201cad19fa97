"""Values that optional parts of the engine store with a request, each under its own key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from tokenwire_reference.core.kv import StoredPage

if TYPE_CHECKING:
    from tokenwire_reference.core.request import Request

_Value = TypeVar("_Value")


class Extra(Generic[_Value]):
    """The key of one value in `Request.extras`. Each optional part defines the keys of its values."""

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
"""True to return the embedding of the prompt and to generate no tokens."""
EMBEDDING = Extra[Sequence[float] | None]("embedding", None)
"""The embedding, scaled to length 1. It is set when the request finishes."""
HIDDEN_ROWS = Extra[Sequence[Sequence[float]]]("hidden_rows", ())
"""The hidden states that were computed since the last token, if they are requested."""
ROUTED_EXPERTS_START = Extra[int | None]("routed_experts_start", None)
"""The first position whose experts are requested; None if no experts are requested."""
ROUTED_EXPERTS = Extra[str | None]("routed_experts", None)
"""The experts of the computed positions in base64. They are set when the request finishes."""
HANDED_OVER = Extra[Mapping[bytes, StoredPage]]("handed_over", {})
"""Pages of the prompt that another engine has computed, by key digest.

They are removed when the request begins to run.
"""
