"""A real server in its own process: slow readers, clients that leave, aborts, and its end."""

from __future__ import annotations

import json
import signal
import socket
from urllib.parse import urlsplit

import loopback
import pytest
from forked_program import served_forked

FOREVER = {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True}


def connect(url, *, receive_buffer=None):
    parts = urlsplit(url)
    client = socket.socket()
    client.settimeout(120)
    if receive_buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.connect((parts.hostname, parts.port))
    return client


def post(client, path, body):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)


def read_to_end(client):
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def events_of(raw):
    """The events of a chunked HTTP answer."""
    _, _, body = raw.partition(b"\r\n\r\n")
    data = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        data, body = data + body[: int(size, 16)], body[int(size, 16) + 2 :]
    assert data.endswith(b"data: [DONE]\n\n")
    return [json.loads(part[6:]) for part in data.split(b"\n\n")[:-2]]


def live_requests(url):
    return loopback.get(f"{url}/server_info").json()["internal_states"][0]["num_live_requests"]


def eventually(what, holds):
    """Ask the server until something holds; it must, after some number of questions."""
    assert any(holds() for _ in range(5000)), f"never: {what}"


@pytest.mark.parametrize("incremental", [True, False])
def test_a_slow_reader_gets_joined_outputs_that_lose_nothing(start_reference, incremental):
    flags = ("--sampling-backend", "mirror")
    url = start_reference(*flags, *(["--incremental-streaming-output"] if incremental else []))
    count = 1500 if incremental else 300
    ask = {
        "input_ids": [72, 101, 108],
        "return_logprob": True,
        "top_logprobs_num": 2,
        "sampling_params": {**FOREVER, "max_new_tokens": count},
    }
    whole = loopback.post(f"{url}/generate", json=ask).json()
    with connect(url, receive_buffer=4096) as client:
        post(client, "/generate", {**ask, "stream": True})
        first = client.recv(1)
        # Not reading is what provokes it. Another request of the same length shows that the time has passed.
        loopback.post(f"{url}/generate", json=ask)
        events = events_of(first + read_to_end(client))
    sizes, ids, text, lists = [], [], "", {}
    for event in events:
        info = event["meta_info"]
        sizes.append(len(event["output_ids"]) - (0 if incremental else len(ids)))
        series = {
            k: v for k, v in info.items() if isinstance(v, list) and k.startswith(("output_", "mirror_"))
        }
        assert {len(values) for values in series.values()} == {len(event["output_ids"])}
        ids = ids + event["output_ids"] if incremental else event["output_ids"]
        text = text + event["text"] if incremental else event["text"]
        lists = {k: (lists.get(k, []) if incremental else []) + v for k, v in series.items()}
        assert info["completion_tokens"] == len(ids)
    assert max(sizes[1:]) > 1, "nothing was joined: the reader was not slow enough to tell"
    assert (ids, text) == (whole["output_ids"], whole["text"])
    assert lists == {name: whole["meta_info"][name] for name in lists}
    assert lists["mirror_token_id"] == ids


DOORS = {
    "/generate": {"input_ids": [72], "sampling_params": {**FOREVER, "n": 2}},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "x"}],
        "input_ids": [72],
        "temperature": 0,
        "max_tokens": 4000,
        "ignore_eos": True,
    },
    "/v1/completions": {"prompt": [[72], [73]], "temperature": 0, "max_tokens": 4000, "ignore_eos": True},
    "/inference/v1/generate": {
        "token_ids": [72],
        "sampling_params": {"max_tokens": 4000, "ignore_eos": True, "n": 2},
    },
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", DOORS)
def test_a_client_that_leaves_ends_its_request(start_reference, path, stream):
    url = start_reference()
    with connect(url) as client:
        post(client, path, {**DOORS[path], "stream": stream})
        eventually("the request runs", lambda: live_requests(url) > 0)
    eventually("the request is forgotten", lambda: live_requests(url) == 0)
    # A flush succeeds only where nothing runs: the engine has let go of it too.
    eventually("the engine is idle", lambda: loopback.post(f"{url}/flush_cache").status_code == 200)
    load = loopback.get(f"{url}/v1/loads").json()["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["num_used_tokens"]) == (0, 0, 0)


def test_an_abort_gives_what_was_generated(start_reference):
    url = start_reference()
    body = {"input_ids": [72], "rid": "gone", "stream": True, "sampling_params": FOREVER}
    with loopback.stream("POST", f"{url}/generate", json=body) as response:
        lines = response.iter_lines()
        events = [json.loads(next(lines)[6:])]
        loopback.post(f"{url}/abort_request", json={"rid": "gone"})
        events += [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    info = events[-1]["meta_info"]
    assert info["finish_reason"]["type"] == "abort"
    ids = events[-1]["output_ids"]
    assert 0 < info["completion_tokens"] == len(ids) < 4000
    again = loopback.post(
        f"{url}/generate",
        json={"input_ids": [72], "rid": "gone", "sampling_params": {**FOREVER, "max_new_tokens": len(ids)}},
    ).json()
    assert again["output_ids"] == ids


def test_abort_all_ends_the_samples_of_everybody(start_reference):
    url = start_reference()
    body = {"input_ids": [72], "sampling_params": {**FOREVER, "n": 2}, "stream": True}
    with loopback.stream("POST", f"{url}/generate", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        loopback.post(f"{url}/abort_request", json={"abort_all": True})
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    ends = [event for event in events if event["meta_info"]["finish_reason"]]
    assert sorted(event["index"] for event in ends) == [0, 1]
    assert {event["meta_info"]["finish_reason"]["type"] for event in ends} == {"abort"}


def test_a_server_that_is_told_to_end_ends_its_streams():
    with served_forked() as (url, server):
        body = {"input_ids": [72], "stream": True, "sampling_params": FOREVER}
        with loopback.stream("POST", f"{url}/generate", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.terminate()
            *_, last, done = [line for line in lines if line]
        server.join()
        assert server.exitcode == -signal.SIGTERM
    assert json.loads(last[6:])["meta_info"]["finish_reason"]["type"] == "abort"
    assert done == "data: [DONE]"


@pytest.mark.parametrize(("seconds", "finish"), [("60", "length"), ("0.5", "abort")])
def test_a_server_that_drains_lets_answers_end(seconds, finish):
    ask = {"input_ids": [72], "sampling_params": {**FOREVER, "max_new_tokens": 3}, "stream": True}
    with served_forked("--drain-seconds", seconds) as (url, server), connect(url) as client:
        # While the engine is paused, the answer cannot end before it may.
        loopback.post(f"{url}/pause_generation", json={"mode": "in_place"})
        post(client, "/generate", ask)
        eventually("the request is known", lambda: live_requests(url) == 1)
        server.terminate()
        if finish == "length":
            eventually("it is not ready", lambda: loopback.get(f"{url}/ready").status_code == 503)
            refused = loopback.post(f"{url}/generate", json=ask)
            assert (refused.status_code, "about to end" in refused.text) == (503, True)
            loopback.post(f"{url}/continue_generation", json={})
        events = events_of(read_to_end(client))
        server.join(120)
        assert server.exitcode == -signal.SIGTERM
    assert events[-1]["meta_info"]["finish_reason"]["type"] == finish
