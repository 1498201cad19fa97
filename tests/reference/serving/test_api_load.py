"""What a server tells of its load, in JSON and for Prometheus."""

from __future__ import annotations

import re

import pytest

from tokenwire_reference.core.load import EngineLoad
from tokenwire_reference.doors.meters import SECONDS, Histogram, Meters, exposition
from tokenwire_reference.server_args import ServerArgs

SAMPLE = re.compile(r'([a-z]+:[a-z0-9_]+)\{model_name="((?:[^"\\]|\\.)*)"(?:,le="([^"]+)")?\} (\S+)')


def samples(text):
    return {(m[1], m[3]): float(m[4]) for m in map(SAMPLE.fullmatch, text.splitlines()) if m}


def test_loads(answers, scripted_engine, call):
    loads, old = answers(
        scripted_engine([[5]]), call("/v1/loads", method="GET"), call("/get_load", method="GET")
    )
    (load,) = loads.json()["loads"]
    assert (load["num_running_reqs"], load["num_used_tokens"], load["max_total_num_tokens"]) == (0, 32, 128)
    assert load["token_usage"] == 0.25
    assert old.json() == [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 32}]


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_metrics_count_what_was_done(start_reference, dialect):
    import loopback

    url = start_reference("--enable-metrics", "--api-dialect", dialect)
    before = samples(loopback.get(f"{url}/metrics").text)
    for _ in range(2):
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        loopback.post(f"{url}/generate", json=body)
    response = loopback.get(f"{url}/metrics")
    after = samples(response.text)
    assert response.headers["content-type"].startswith("text/plain")

    def grown(name, bucket=None):
        return after[f"{dialect}:{name}", bucket] - before[f"{dialect}:{name}", bucket]

    assert grown("prompt_tokens_total") == 6
    assert grown("generation_tokens_total") == 8
    assert grown("num_requests_total") == 2
    assert grown("e2e_request_latency_seconds_count") == 2
    assert grown("time_to_first_token_seconds_bucket", "+Inf") == 2


def test_metrics_are_there_only_where_asked_for(answers, scripted_engine, call):
    (refused,) = answers(scripted_engine([[5]]), call("/metrics", method="GET"))
    assert refused.status_code == 404


def test_buckets_are_cumulative_and_labels_escaped():
    meters = Meters()
    meters.emitted(1, 0, since_start=0.0009, since_last=0.0009)
    meters.emitted(4, 1, since_start=9.0, since_last=0.4)
    args = ServerArgs(served_model_name='a"b\\c')
    text = exposition(args, meters, EngineLoad(1, 2, 3, 4))
    assert 'model_name="a\\"b\\\\c"' in text
    found = samples(text)
    buckets = [found["sglang:inter_token_latency_seconds_bucket", str(bound)] for bound in SECONDS]
    assert buckets == [0 if bound < 0.1 else 4 for bound in SECONDS]
    assert found["sglang:time_to_first_token_seconds_bucket", "0.001"] == 1
    assert found["sglang:inter_token_latency_seconds_sum", None] == pytest.approx(0.4)
    assert text.count("# TYPE") == text.count("# HELP") == 12


def test_each_request_that_ended_is_counted_with_its_prompt():
    meters = Meters()
    meters.ended(prompt_tokens=5, cached_tokens=2, seconds=1.0, aborted=False)
    meters.ended(prompt_tokens=7, cached_tokens=0, seconds=2.0, aborted=True)
    assert (meters.requests, meters.aborted) == (2, 1)
    assert (meters.prompt_tokens, meters.cached_tokens, meters.end_to_end.total) == (12, 2, 3.0)


def test_a_time_on_a_bound_is_within_it():
    histogram = Histogram()
    histogram.observe(SECONDS[3])
    histogram.observe(SECONDS[-1] + 1)
    assert (histogram.counts[3], histogram.counts[-1]) == (1, 1)
