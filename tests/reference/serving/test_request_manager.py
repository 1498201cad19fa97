"""One append-only record for each request, and what a consumer takes of it, however late it comes."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import Letters

from tokenwire_reference.core.detokenizer import Detokenizer, Spelling
from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import FinishReason, Request, Row, SamplingParams
from tokenwire_reference.core.stopping import StopRules
from tokenwire_reference.doors import reader as reader_module
from tokenwire_reference.doors.reader import Delivery
from tokenwire_reference.doors.request_manager import DuplicateRequestIdError, RequestManager

LOGPROBS = "output_token_logprobs"


LETTERS = Letters()


class Inbox:
    """Stands where the engine's thread does."""

    def __init__(self):
        self.added = []
        self.aborted = []

    def add(self, request, *, aborted=False):
        self.added.append(request.rid)
        if aborted:
            self.abort(request.rid)

    def abort(self, rid):
        self.aborted.append(rid)


RECORDS = {}


@pytest.fixture(autouse=True)
def _no_records():
    RECORDS.clear()


def row(start, text, *, rid="r", finish=None, late=None):
    """Append to the record of a request what a row brings, and give the row."""
    if rid not in RECORDS:
        RECORDS[rid] = ask(rid)
        RECORDS[rid].prompt_series["input_token_logprobs"] = [[None, 7, None]]
    record = RECORDS[rid]
    for place, letter in enumerate(text):
        details = {} if late is None else {"late": late[place]}
        record.append(ord(letter), {LOGPROBS: [-0.5, ord(letter), None]}, details)
    return Row(record, start, start + len(text), record.series, finish)


def ask(rid="r", **sampling):
    return Request(rid, (7,), SamplingParams(**sampling), stream=True, return_logprob=True)


END = FinishReason("length", length=9)


def run(scenario):
    return asyncio.run(scenario())


async def collect(generation, delivery):
    taken = []
    while not generation.ended:
        await generation.woken()
        taken += generation.take(delivery)
    return taken


@given(
    text=st.text("abcdef", min_size=1, max_size=12),
    cuts=st.sets(st.integers(1, 11)),
    reads=st.lists(st.booleans(), min_size=13, max_size=13),
    delivery=st.sampled_from(Delivery),
)
def test_whenever_the_consumer_comes_nothing_is_lost(text, cuts, reads, delivery):
    """Rows cut anywhere, taken now or later: ids, text and series stay in lockstep and join to the record."""
    RECORDS.clear()
    places = [0, *sorted(c for c in cuts if c < len(text)), len(text)]

    async def scenario():
        manager = RequestManager(Inbox(), LETTERS)
        generation = manager.submit([ask()])
        reader = generation.readers[0]
        taken = []
        for i, (a, b) in enumerate(pairwise(places)):
            manager.deliver([row(a, text[a:b], finish=END if b == len(text) else None)])
            if reads[i]:
                taken.append(reader.take(delivery))
        if reader.pending:
            taken.append(reader.take(delivery))
        return taken

    taken = run(scenario)
    for emission in taken:
        assert len(emission.output_ids) == len(emission.series[LOGPROBS])
        assert [entry[1] for entry in emission.series[LOGPROBS]] == emission.output_ids
        assert emission.text == LETTERS.decode(emission.output_ids)
        assert emission.record.prompt_series == {"input_token_logprobs": [[None, 7, None]]}
    joined = taken[-1].text if delivery is Delivery.CUMULATIVE else "".join(e.text for e in taken)
    assert joined == text
    assert [e.finish for e in taken] == [None] * (len(taken) - 1) + [END]
    assert taken[-1].completion_tokens == len(text)
    assert [e.first for e in taken] == [True] + [False] * (len(taken) - 1)


def test_an_emission_holds_no_list_that_still_grows():
    async def scenario():
        manager = RequestManager(Inbox(), LETTERS)
        reader = manager.submit([ask()]).readers[0]
        manager.deliver([row(0, "ab")])
        emission = reader.take(Delivery.CUMULATIVE)
        manager.deliver([row(2, "cd")])
        return emission

    emission = run(scenario)
    assert (emission.text, len(emission.output_ids), len(emission.series[LOGPROBS])) == ("ab", 2, 2)


def test_a_key_that_starts_late_or_stays_away_has_nulls_there():
    async def scenario():
        manager = RequestManager(Inbox(), LETTERS)
        reader = manager.submit([ask()]).readers[0]
        manager.deliver([row(0, "ab")])
        early = reader.take(Delivery.INCREMENTAL)
        manager.deliver([row(2, "cd", late=[None, 4])])
        manager.deliver([row(4, "ef")])
        delta = reader.take(Delivery.INCREMENTAL)
        return early, delta, reader.take(Delivery.CUMULATIVE)

    early, delta, everything = run(scenario)
    assert "late" not in early.series
    assert delta.series["late"] == [None, 4, None, None]
    assert everything.series["late"] == [None, None, None, 4, None, None]


def test_a_record_that_fails_ends_alone():
    """A row that does not follow ends its own request, in band; the rows behind it are delivered."""

    async def scenario():
        inbox = Inbox()
        manager = RequestManager(inbox, LETTERS)
        bad, good = manager.submit([ask("bad")]), manager.submit([ask("good")])
        manager.deliver([row(0, "ab", rid="bad"), row(0, "x", rid="good")])
        manager.deliver([row(3, "d", rid="bad"), row(1, "y", rid="good", finish=END)])
        manager.deliver([row(4, "e", rid="bad", finish=END)])
        assert manager.live == 0
        return (await bad.whole())[0], (await good.whole())[0], inbox.aborted

    bad, good, aborted = run(scenario)
    assert (bad.finish.status_code, list(bad.output_ids), aborted) == (500, [97, 98], ["bad"])
    assert "row 3:4 of request 'bad' does not follow its 2 tokens" in bad.finish.message
    assert (good.text, good.finish) == ("xy", END)


def test_choices_of_one_call_come_interleaved_until_each_has_ended():
    async def scenario():
        manager = RequestManager(Inbox(), LETTERS)
        generation = manager.submit([ask("a"), ask("b")])
        reading = asyncio.ensure_future(collect(generation, Delivery.INCREMENTAL))
        for rows in (
            [row(0, "x", rid="a"), row(0, "u", rid="b", finish=END)],
            [row(1, "y", rid="a", finish=END)],
        ):
            manager.deliver(rows)
            await asyncio.sleep(0)
        return await reading, manager.live

    emissions, live = run(scenario)
    assert [(e.index, e.record.rid, e.text) for e in emissions] == [
        (0, "a", "x"),
        (1, "b", "u"),
        (0, "a", "y"),
    ]
    assert live == 0


def test_whole_waits_for_every_choice():
    async def scenario():
        manager = RequestManager(Inbox(), LETTERS)
        generation = manager.submit([ask("a"), ask("b")])
        whole = asyncio.ensure_future(generation.whole())
        manager.deliver([row(0, "xy", rid="b", finish=END)])
        await asyncio.sleep(0)
        assert not whole.done()
        manager.deliver([row(0, "uv", rid="a", finish=END)])
        return await whole

    assert [choice.text for choice in run(scenario)] == ["uv", "xy"]


def test_a_stop_string_never_shows_in_a_stream():
    """Held back by the streamer, cut by the detokenizer: the two together, token by token."""

    async def scenario():
        manager = RequestManager(Inbox(), LETTERS)
        asked = ask(stop=("END",))
        reader = manager.submit([asked]).readers[0]
        streamer = OutputStreamer(stream_interval=1)
        detokenizer = Detokenizer(Spelling(LETTERS.decode))
        rules = StopRules(asked.sampling, frozenset(), 9, detokenizer)
        streamer.admit(asked)
        texts = []
        for letter in "an ENDEND"[:6]:
            asked.append(ord(letter), {LOGPROBS: [-0.5, ord(letter), None]}, {})
            asked.finish = rules.check(asked.output_ids)
            asked.held_back = rules.hold_back(asked.output_ids)
            manager.deliver(streamer.stream([asked]))
            if reader.pending:
                texts.append(reader.take(Delivery.CUMULATIVE).text)
        return texts

    assert run(scenario) == ["a", "an", "an ", "an "]


def test_a_duplicate_id_is_refused_and_harms_nobody():
    async def scenario():
        inbox = Inbox()
        manager = RequestManager(inbox, LETTERS)
        first = manager.submit([ask("a"), ask("b")], group="g")
        with pytest.raises(DuplicateRequestIdError, match="'c' occurs twice"):
            manager.submit([ask("c"), ask("c")])
        for names, group in ((["a"], None), (["g"], None), (["c"], "a"), (["c"], "g")):
            with pytest.raises(DuplicateRequestIdError, match="has not ended"):
                manager.submit([ask(name) for name in names], group=group)
        assert inbox.added == ["a", "b"]
        manager.deliver([row(0, "x", rid="a", finish=END), row(0, "y", rid="b", finish=END)])
        texts = [choice.text for choice in await first.whole()]
        RECORDS.clear()
        again = manager.submit([ask("a")], group="g")
        manager.deliver([row(0, "z", rid="a", finish=END)])
        return texts, (await again.whole())[0].text

    assert run(scenario) == (["x", "y"], "z")


def test_abort_matches_whole_ids_and_groups():
    async def scenario():
        inbox = Inbox()
        manager = RequestManager(inbox, LETTERS)
        manager.submit([ask("req-1")])
        manager.submit([ask("req-10")])
        manager.submit([ask("g_0"), ask("g_1")], group="g")
        manager.abort("req-1")
        manager.abort("req")
        manager.abort("nobody")
        manager.abort("g")
        aborted = list(inbox.aborted)
        manager.abort_all()
        return aborted, inbox.aborted[len(aborted) :]

    assert run(scenario) == (["req-1", "g_0", "g_1"], ["req-1", "req-10", "g_0", "g_1"])


def test_closing_aborts_only_what_has_not_ended():
    async def scenario():
        inbox = Inbox()
        manager = RequestManager(inbox, LETTERS)
        generation = manager.submit([ask("a"), ask("b")])
        manager.deliver([row(0, "x", rid="a", finish=END)])
        generation.close()
        manager.deliver([row(0, "", rid="b", finish=FinishReason("abort"))])
        return inbox.aborted, manager.live

    assert run(scenario) == (["b"], 0)


def test_without_a_tokenizer_there_is_no_text():
    async def scenario():
        manager = RequestManager(Inbox(), None)
        generation = manager.submit([ask()])
        manager.deliver([row(0, "ab", finish=END)])
        return (await generation.whole())[0]

    choice = run(scenario)
    assert (choice.text, choice.output_ids) == ("", [97, 98])


def test_a_group_can_be_aborted_until_the_last_of_it_has_ended():
    async def scenario():
        inbox = Inbox()
        manager = RequestManager(inbox, LETTERS)
        manager.submit([ask("g_0"), ask("g_1")], group="g")
        manager.deliver([row(0, "x", rid="g_0", finish=END)])
        manager.abort("g")
        return inbox.aborted

    assert run(scenario) == ["g_1"]


def test_the_time_between_tokens_begins_with_the_row_before(monkeypatch):
    """And that of several new ones is shared among them; the first token's begins with the request."""
    clock = iter([103.0, 103.5, 104.5])

    async def scenario():
        manager = RequestManager(Inbox(), LETTERS)
        (reader,) = manager.submit([ask()]).readers
        reader.started = 100.0
        monkeypatch.setattr(reader_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        for item in (row(0, "a"), row(1, "b"), row(2, "cd", finish=END)):
            manager.deliver([item])
        return manager.meters

    meters = run(scenario)
    totals = [item.total for item in (meters.first_token, meters.between_tokens, meters.end_to_end)]
    assert totals == [3.0, 1.5, 4.5]
    assert (meters.requests, meters.aborted) == (1, 0)


def test_requests_that_were_aborted_are_counted():
    async def scenario():
        manager = RequestManager(Inbox(), LETTERS)
        manager.submit([ask()])
        manager.deliver([row(0, "a", finish=FinishReason("abort"))])
        return manager.meters

    meters = run(scenario)
    assert (meters.requests, meters.aborted) == (1, 1)
