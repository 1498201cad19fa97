"""What of a run's time is told to be not the server's."""

from __future__ import annotations

import pytest

from tokenwire.asking.stopwatch import Stopwatch


class _Time:
    """A clock and a processor that a test sets."""

    def __init__(self) -> None:
        self.now, self.computed = 100.0, 1.0

    def passes(self, seconds: float, *, computing: float = 0.0) -> None:
        self.now += seconds
        self.computed += computing


def test_what_is_computed_while_a_server_answers_is_not_the_servers() -> None:
    time = _Time()
    watch = Stopwatch(lambda: time.now, lambda: time.computed)
    time.passes(1.0)
    with watch.exchange():
        time.passes(2.0, computing=0.5)
        with watch.exchange():  # two at once
            time.passes(3.0, computing=0.5)
        time.passes(1.0)
    time.passes(2.0, computing=2.0)
    assert watch.words() == "Took 10.0 s, 5.0 s of it waiting for the server."


def test_loading_counts_and_nothing_exceeds_the_whole() -> None:
    time = _Time()
    watch = Stopwatch(lambda: time.now, lambda: time.computed)
    with watch.exchange():
        time.passes(1.0, computing=5.0)  # threads
    assert watch.words() == "Took 2.0 s, 0.0 s of it waiting for the server."


def test_an_exchange_that_fails_is_over() -> None:
    time = _Time()
    watch = Stopwatch(lambda: time.now, lambda: time.computed)
    with pytest.raises(ZeroDivisionError), watch.exchange():
        time.passes(1 / 0)
    time.passes(2.0)
    assert watch.words() == "Took 3.0 s, 0.0 s of it waiting for the server."
