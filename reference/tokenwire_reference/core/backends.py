"""Sampler backends, registered by name: the values that a backend computes for a token are sent with the
token as `customized_info`.

A backend sees the adjusted logits and the chosen ids of one step, and may return one value for each row under
any key:

    def entropy(logits, rows, token_ids):
        p = logits.softmax(-1)
        return {"entropy": (-(p * p.log()).nansum(-1)).tolist()}

    register_sampler_backend("entropy", lambda: entropy)

and `--sampling-backend entropy` adds `meta_info.entropy`, with one value for each output id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tokenwire_reference.core.sampling import SamplingRow

SamplerBackend = Callable[[Tensor, Sequence[SamplingRow], Sequence[int]], Mapping[str, Sequence[Any]]]
"""A function of (adjusted logits [R, V], rows, chosen ids).

It returns a list for each key, with one JSON value for each row.
"""

_factories: dict[str, Callable[[], SamplerBackend]] = {}


def mirror(
    logits: Tensor, rows: Sequence[SamplingRow], token_ids: Sequence[int]
) -> Mapping[str, Sequence[int]]:
    """Return `mirror_token_id`, the id, and `mirror_position`, the position whose logits chose it.

    With these values a client can detect `customized_info` that is shifted, lost or mixed up
    (sgl-project/sglang PR #27205).
    """
    del logits
    return {"mirror_token_id": list(token_ids), "mirror_position": [row.position for row in rows]}


def register_sampler_backend(name: str, factory: Callable[[], SamplerBackend]) -> None:
    """Register a backend as `name`. Raises ValueError if the name is in use."""
    if name in _factories:
        raise ValueError(f"sampler backend {name!r} is already registered; choose another name")
    _factories[name] = factory


def make_sampler_backend(name: str) -> SamplerBackend:
    """Return a new backend. Raises ValueError with the known names."""
    if name not in _factories:
        raise ValueError(f"there is no sampler backend {name!r}; there are: {', '.join(sorted(_factories))}")
    return _factories[name]()


register_sampler_backend("pytorch", lambda: lambda *_: {})  # the default backend writes no values
register_sampler_backend("mirror", lambda: mirror)
