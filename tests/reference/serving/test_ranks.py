"""Several engines in one server: each request on one rank; a rank that dies takes its own requests along."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import loopback
import pytest

from tokenwire_reference.core.output_streamer import OutputStreamer
from tokenwire_reference.core.request import Request, Row, SamplingParams
from tokenwire_reference.running.engine_runner import EngineThread
from tokenwire_reference.running.ranks import DP_RANK, Ranks
from tokenwire_reference.server_args import ServerArgs

BODY = {
    "input_ids": [5, 6, 7],
    "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True},
}


def ask(rid: str, **fields) -> Request:
    return Request(rid, (1, 2), SamplingParams(), **fields)


@pytest.fixture
def started() -> Iterator[Callable]:
    """Give `started(*engines)`: ranks that run, and the queue that gets their rows."""
    running = []

    def start(*engines) -> tuple[Ranks, queue.SimpleQueue[Row]]:
        rows: queue.SimpleQueue[Row] = queue.SimpleQueue()

        def deliver(given) -> None:
            for row in given:
                rows.put(row)

        ranks = Ranks(
            [EngineThread(engine, OutputStreamer(stream_interval=1), deliver) for engine in engines]
        )
        ranks.start()
        running.append(ranks)
        return ranks, rows

    yield start
    for ranks in running:
        ranks.stop()


def held_engine(scripted_engine, let_go: threading.Event):
    class Held(scripted_engine):
        def step(self):
            let_go.wait(timeout=120)
            return super().step()

    return Held([[5]])


def test_a_rank_that_dies_takes_its_own_requests_along_and_no_others(started, scripted_engine):
    let_go, failed = threading.Event(), threading.Event()

    class Broken(scripted_engine):
        def step(self):
            let_go.wait(timeout=120)
            raise RuntimeError("out of memory")

    ranks, rows = started(Broken([[5]]), held_engine(scripted_engine, let_go))
    ranks.on_failure = failed.set
    requests = {rid: ask(rid) for rid in "abcd"}
    for request in requests.values():
        ranks.add(request)
    let_go.set()
    ended = {row.record.rid: row for row in (rows.get(timeout=120) for _ in range(4))}
    for rid, row in ended.items():
        assert row.finish.type == ("abort" if DP_RANK.of(requests[rid]) == 0 else "length")
        assert row.finish.status_code == (500 if DP_RANK.of(requests[rid]) == 0 else None)
    ranks.delivered(list(ended.values()))
    assert ranks.failure is None
    assert not failed.is_set()
    later = [ask(f"later-{number}") for number in range(3)]
    for request in later:
        ranks.add(request)
    assert {rows.get(timeout=120).finish.type for _ in later} == {"length"}
    assert {DP_RANK.of(request) for request in later} == {1}


def test_the_server_fails_once_no_rank_is_left(started, scripted_engine):
    failed = threading.Event()

    class Broken(scripted_engine):
        def step(self):
            raise RuntimeError("out of memory")

    ranks, rows = started(Broken([[5]]), Broken([[5]]))
    ranks.on_failure = failed.set
    for rid in "ab":
        ranks.add(ask(rid))
    assert {rows.get(timeout=120).finish.status_code for _ in range(2)} == {500}
    assert failed.wait(timeout=120)
    assert isinstance(ranks.failure, RuntimeError)


def test_requests_go_to_the_rank_that_has_the_fewest(started, scripted_engine):
    let_go = threading.Event()
    engines = [held_engine(scripted_engine, let_go) for _ in range(3)]
    ranks, rows = started(*engines)
    chosen = ask("chosen", extras={DP_RANK: 1})
    ranks.add(chosen)
    others = [ask(str(number)) for number in range(5)]
    for request in others:
        ranks.add(request)
    assert [DP_RANK.of(request) for request in others] == [0, 2, 0, 1, 2]
    ranks.abort("2")
    let_go.set()
    ended = {row.record.rid: row.finish.type for row in (rows.get(timeout=120) for _ in range(6))}
    assert ended == {"chosen": "length", **{str(n): "abort" if n == 2 else "length" for n in range(5)}}


def test_what_ended_counts_no_more(started, scripted_engine):
    ranks, rows = started(scripted_engine([[5]]), scripted_engine([[5]]))
    for number in range(3):
        request = ask(str(number), extras={DP_RANK: 0})
        ranks.add(request)
        ranks.delivered([rows.get(timeout=120)])
    last = ask("last", extras={DP_RANK: 1})
    ranks.add(last)
    free = ask("free")
    ranks.add(free)
    assert DP_RANK.of(free) == 0


def test_a_function_is_run_of_every_engine(started, scripted_engine):
    ranks, _ = started(scripted_engine([[5]]), scripted_engine([[5]]))
    loads = [future.result(timeout=120) for future in ranks.each(lambda engine: engine.load)]
    assert [load.total_tokens for load in loads] == [128, 128]


@pytest.mark.parametrize("model", ["builtin:tiny", "builtin:scripted"])
def test_a_server_of_two_ranks_answers_as_one_does(start_reference, model: str):
    url, alone = start_reference("--dp-size", "2", "--model", model), start_reference("--model", model)
    expected = loopback.post(f"{alone}/generate", json=BODY).json()
    answers = [loopback.post(f"{url}/generate", json=BODY).json() for _ in range(4)]
    assert {tuple(answer["output_ids"]) for answer in answers} == {tuple(expected["output_ids"])}
    assert sorted(answer["meta_info"]["dp_rank"] for answer in answers) == [0, 0, 1, 1]
    assert expected["meta_info"]["dp_rank"] is None
    batch = loopback.post(f"{url}/generate", json=BODY | {"input_ids": [[5, 6, 7]] * 4}).json()
    assert sorted(answer["meta_info"]["dp_rank"] for answer in batch) == [0, 0, 1, 1]


def test_a_cache_is_that_of_a_rank_and_a_load_too(start_reference):
    url = start_reference("--dp-size", "2")
    prompt = [9, 8, 7, 6] * 16

    def cached(rank: int) -> int:
        body = BODY | {"input_ids": prompt, "routed_dp_rank": rank}
        info = loopback.post(f"{url}/generate", json=body).json()["meta_info"]
        assert info["dp_rank"] == rank
        return info["cached_tokens"]

    assert loopback.post(f"{url}/flush_cache").status_code == 200
    assert cached(0) == 0
    assert cached(0) > 0
    assert cached(1) == 0
    assert cached(1) > 0
    assert loopback.post(f"{url}/flush_cache").status_code == 200
    assert [cached(rank) for rank in (0, 1)] == [0, 0]
    loads = loopback.get(f"{url}/v1/loads").json()["loads"]
    assert [load["dp_rank"] for load in loads] == [0, 1]
    assert [load["dp_rank"] for load in loopback.get(f"{url}/get_load").json()] == [0, 1]
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "return_meta_info": True}
    for path, body in (
        ("generate", BODY),
        ("v1/chat/completions", chat),
        ("v1/completions", {"prompt": [5, 6], "max_tokens": 2}),
    ):
        refused = loopback.post(f"{url}/{path}", json=body | {"routed_dp_rank": 2})
        assert (refused.status_code, "0 to 1" in refused.text) == (400, True)
    answered = loopback.post(f"{url}/v1/chat/completions", json=chat | {"routed_dp_rank": 1}).json()
    assert answered["choices"][0]["meta_info"]["dp_rank"] == 1


def test_storage_belongs_to_one_engine(tmp_path):
    with pytest.raises(ValueError, match="storage of one engine"):
        ServerArgs(
            dp_size=2,
            enable_hierarchical_cache=True,
            hicache_storage_backend="file",
            hicache_storage_dir=str(tmp_path),
        )


def test_samples_made_from_the_same_values_run_on_ranks_of_their_own():
    values = {DP_RANK: None}
    first, second = (ask(name, extras=values) for name in ("first", "second"))
    DP_RANK.put(first, 1)
    assert (DP_RANK.of(first), DP_RANK.of(second)) == (1, None)
