"""A few hundred damaged answers, the same every time: `nox -s fuzz` goes on with 200,000 of each kind."""

from __future__ import annotations

import pytest
from proofs.fuzz_answers import (
    PROPERTIES,
    Damage,
    damaged,
    examine,
    examine_capture,
    examine_connection,
    seeds,
    written,
)


@pytest.mark.parametrize("examined", PROPERTIES, ids=lambda examined: examined.__name__)
def test_damaged_answers_are_judged_without_a_fault_of_our_own(examined) -> None:
    examine(examined, 0, 120)


def test_the_seeds_are_of_many_kinds() -> None:
    exchanges = [item for seed in seeds() for item in seed]
    assert len({exchange.request.path for exchange in exchanges}) >= 10
    assert {200, 400, 404} <= {exchange.status for exchange in exchanges}
    assert any(b"data:" in exchange.body for exchange in exchanges)


def test_an_edit_does_what_it_says() -> None:
    data = b'{"a":1,"b":[2]}'
    assert Damage("value", 0.34, 1, b"null").done_to(data) == b'{"a":null,"b":[2]}'
    assert Damage("insert", 0.0, 1, b"x").done_to(data) == b"x" + data
    assert Damage("lose", 0.99, 9, b"").done_to(data) == data[:-1]
    assert Damage("double", 0.0, 2, b"").done_to(data) == b'{"' + data
    assert Damage("flip", 0.0, 0, b"").done_to(data) == b"z" + data[1:]
    assert (
        damaged(b"", [Damage("value", 0.5, 1, b"null"), Damage("flip", 0.5, 3, b"")]) == b"nu" + b"d" + b"l"
    )


def test_a_fault_of_a_check_and_of_the_observer_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = written(next(seed for seed in seeds() if seed[0].request.path == "/generate"))

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("proofs.fuzz_answers.document", broken)
        with pytest.raises(ZeroDivisionError):
            examine_capture(capture)
    monkeypatch.setattr("tokenwire_live.watch.exchange_assembly.as_started", None)
    with pytest.raises(AssertionError):
        examine_connection(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"", 0.5)
