"""The keys of a request: each kind of field changes the keys that `request_keys` says, and no other."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tokenwire.ask import RULES, Asked
from tokenwire.dialects import request_reading
from tokenwire.dialects.request_binding import RequestBinding
from tokenwire.dialects.request_keys import RequestKeys
from tokenwire.dialects.request_reading import read_request
from tokenwire.wire.exchange import HttpRequest

BINDING = RequestBinding(
    dialect="mine",
    model=("model",),
    prompt={"input_ids": ("ids",)},
    batches=True,
    fields={
        "temperature": (("temperature",),),
        "max_new_tokens": (("most",),),
        "seed": (("seed",),),
        "stream": (("stream",),),
    },
    neutral={("neutral",): 1},
    forms=(("form",),),
    cache_keys=(("salt",),),
    report_only=(("report",),),
    rank=(("rank",),),
    asks={("states",): "hidden_states"},
    truncate=("truncate",),
)
BODY = {"ids": [1, 2], "most": 4, "temperature": 0, "neutral": 1}


def keys_of(**changes: object) -> dict[str, object]:
    asked = read_request(BINDING, HttpRequest("POST", "/", {**BODY, **changes}))
    return {field.name: getattr(asked, field.name) for field in fields(RequestKeys)}


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"ids": [1, 3]}, {"key", "prompt_key", "ids_key"}),
        ({"model": "m"}, {"key", "prompt_key"}),
        ({"most": 5}, {"key", "ids_key"}),
        ({"seed": 1}, set()),  # greedy: it changes nothing
        ({"stream": True}, set()),
        ({"grammar": "a"}, {"key", "ids_key", "other_sampling", "constrained"}),
        ({"neutral": 2}, {"key", "ids_key", "other_sampling", "constrained"}),
        ({"neutral": None}, set()),
        ({"form": "short"}, {"key", "ids_key", "form"}),
        ({"salt": "a"}, {"cache_key"}),
        ({"report": 1}, set()),
        ({"rank": 1}, set()),
        ({"states": True}, set()),
        ({"truncate": 7}, set()),
        ({"temperature": 1}, {"key", "ids_key"}),
        ({"ids": "no ids"}, {"key", "prompt_key", "ids_key"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_a_field_is_in_the_keys_of_its_kind(change: dict[str, object], changed: set[str]) -> None:
    before, after = keys_of(), keys_of(**change)
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.parametrize(
    ("change", "empty"), [({"temperature": 1}, {"key", "ids_key"}), ({"ids": "?"}, {"key"})]
)
def test_a_key_is_empty_if_nothing_may_be_compared(change: dict[str, object], empty: set[str]) -> None:
    found = keys_of(**change)
    assert all(found[name] == "" for name in empty)
    assert all(keys_of()[name] != "" for name in empty)


def test_a_seed_lets_sampled_answers_be_compared_at_one_endpoint() -> None:
    sampled = {"temperature": 1, "seed": 3}
    assert keys_of(**sampled)["key"] not in ("", keys_of(temperature=1, seed=4)["key"])
    assert keys_of(**sampled)["ids_key"] == ""


def test_each_field_of_a_request_has_one_reader() -> None:
    of_keys = {field.name for field in fields(RequestKeys)}
    read = request_reading._READERS.keys() | RULES.keys() | of_keys
    assert read == {field.name for field in fields(Asked)} - {"turn", "by_prompt"}
    assert request_reading._READERS.keys() & of_keys == set()
    assert request_reading._ONLY_IF.keys() <= RULES.keys() - request_reading._READERS.keys()
