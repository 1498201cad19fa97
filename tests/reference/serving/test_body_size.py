"""Bodies of many megabytes: refused or read in memory that is a small multiple of their size."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import orjson
import pytest

from tokenwire_reference.doors import body as bodies
from tokenwire_reference.doors.body_size import MOST_DEPTH, MOST_VALUES, refuse_many_values, stand_in
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.schemas import request_schema

HI = {"text": "hi"}
CHAT = {"messages": [{"role": "user", "content": "x"}]}
PROGRAM = Path(__file__).with_name("body_memory.py")


def test_a_body_takes_at_most_twenty_times_its_size():
    ran = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    measured = json.loads(ran.stdout)
    assert len(measured) >= 15
    assert {name: size for name, (size, _) in measured.items() if size < 3_500_000} == {}
    assert {name: times for name, (_, times) in measured.items() if times > 20} == {}


@pytest.mark.parametrize("entry", ['"a"', "[]", "{}", '{"a": 1}', '"\\""'])
def test_values_are_counted_outside_of_texts(entry):
    most = MOST_VALUES - 1 if entry != '{"a": 1}' else (MOST_VALUES - 1) // 2
    content = ("[" + ",".join([entry] * most) + "]").encode()
    refuse_many_values(content)
    with pytest.raises(RefusalError, match=f"more than {MOST_VALUES} lists, objects, texts and names"):
        refuse_many_values(content.replace(b"[", b"[[],[],", 1))


@pytest.mark.parametrize("text", ["[{" * MOST_VALUES, '\\"' * MOST_VALUES, '{"a": "' * MOST_VALUES])
def test_what_stands_in_a_text_is_no_value(text):
    refuse_many_values(orjson.dumps({"text": text}))


@pytest.mark.parametrize("end", [b"", b"\\", b'\\"'])
def test_an_open_text_is_read_once(end):
    """The pattern takes what is left; else each quote would be the beginning of another attempt."""
    refuse_many_values(b'{"' + b'\\"' * (2 * MOST_VALUES) + end)


@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a":', "}")])
def test_a_deep_body_is_refused(before, after):
    deep = MOST_DEPTH - 2
    bodies._parsed((f'{{"zzz": {before * deep}1{after * deep}}}').encode())
    deep += 2
    with pytest.raises(RefusalError, match="nested deeper than 200"):
        bodies._parsed((f'{{"zzz": {before * deep}1{after * deep}}}').encode())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input_ids": [5] * 1025 + ["x"]}, 'input_ids[1025]: x is not of type "integer"'),
        ({"input_ids": ["x"] * 1025}, "input_ids[0]"),
        ({"text": ["x"] * 1025}, "text: 1025 are given; it has more than 1024 items"),
        ({"input_ids": [[5]] * 1025}, "input_ids: 1025 are given; it has more than 1024 items"),
        ({"input_ids": [5] * 1025 + [True]}, 'input_ids[1025]: True is not of type "integer"'),
        ({"input_ids": [5] * 1025 + [1.5]}, 'input_ids[1025]: 1.5 is not of type "integer"'),
        ({"input_ids": [5] * 1025 + [-1]}, "-1 is less than the minimum of 0"),
        ({"input_ids": [[5], [5] * 1025 + [None]]}, 'input_ids[1][1025]: None is not of type "integer"'),
    ],
)
def test_a_long_list_of_ids_is_held_against_its_schema(body, words):
    with pytest.raises(RefusalError) as refused:
        bodies.hold_against_schema(body, "generate-request")
    assert words in str(refused.value)


def test_a_validator_sees_the_fields_that_its_schema_describes_and_no_long_list():
    body = {"input_ids": [*range(2000)], "zzz": [[1] * 100] * 100, "sampling_params": {"stop": ["a"] * 32}}
    slim = stand_in(body, request_schema("generate-request"))
    assert slim == {
        "input_ids": [0, 1999],
        "zzz": [[1] * 8] * 8,
        "sampling_params": {"stop": ["a"] * 32},
    }


LONG = {"messages": [{"role": "user", "content": "x" * 5000}]}
WORK = [
    ("/generate", {"text": "hi " * 100, "sampling_params": {"n": 64}}, {}),
    ("/generate", {"text": "hi " * 2000}, {}),
    ("/v1/chat/completions", LONG, {}),
    ("/v1/completions", {"prompt": ["hi"] * 1024}, {}),
    ("/v1/completions", {"prompt": ["hi"] * 1024}, {"api_dialect": "vllm"}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x" * 5000}]},
        {"api_dialect": "vllm"},
    ),
    ("/v1/responses", {"input": "x" * 5000}, {}),
    ("/v1/messages", LONG | {"max_tokens": 1}, {}),
    ("/v1/messages/count_tokens", LONG, {}),
    ("/v1/embeddings", {"input": "x" * 5000}, {}),
    ("/encode", {"text": "x" * 5000}, {}),
    ("/v1/score", {"text_1": "x", "text_2": ["x"] * 1024}, {}),
    ("/v1/rerank", {"query": "x", "documents": ["x"] * 1024}, {}),
    ("/v1/classify", {"input": "x" * 5000}, {}),
    ("/tokenize", {"prompt": "x" * 5000}, {}),
    ("/tokenize", {"prompt": "x" * 5000, "return_token_strs": True}, {"api_dialect": "vllm"}),
    ("/detokenize", {"tokens": [5] * 3000}, {}),
    ("/detokenize", {"tokens": [5] * 3000}, {"api_dialect": "vllm"}),
]


class Watched:
    """A tokenizer that notes who spells texts and long lists of ids."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.threads = set()

    def __len__(self):
        return len(self._tokenizer)

    def __getattr__(self, name):
        value = getattr(self._tokenizer, name)
        if name not in {"encode", "decode", "apply_chat_template"}:
            return value

        def watched(given, *args, **options):
            if name != "decode" or len(given) > 100:
                self.threads.add(threading.current_thread())
            return value(given, *args, **options)

        return watched


@pytest.mark.parametrize("asked", WORK)
def test_no_long_body_is_understood_on_the_event_loop(answer, scripted_engine, tiny_tokenizer, asked):
    path, body, flags = asked
    tokenizer = Watched(tiny_tokenizer)
    answer(scripted_engine([[5]]), path, body, tokenizer=tokenizer, **flags)
    assert tokenizer.threads
    assert threading.main_thread() not in tokenizer.threads


def test_a_long_answer_is_not_written_on_the_event_loop(answer, scripted_engine, monkeypatch):
    from tokenwire_reference.doors import answering

    threads, write = [], answering.json_answer
    monkeypatch.setattr(
        answering, "json_answer", lambda value: threads.append(threading.current_thread()) or write(value)
    )
    for top in (0, 100):
        body = {"input_ids": [5], "return_logprob": True, "top_logprobs_num": top}
        body["sampling_params"] = {"max_new_tokens": 60}
        response = answer(scripted_engine([[5] * 60]), "/generate", body)
        assert response.status_code == 200
    main = threading.main_thread()
    assert [thread is main for thread in threads] == [True, False]


def test_an_event_of_a_cumulative_stream_is_bounded(answer, scripted_engine):
    body = {"input_ids": [5], "return_logprob": True, "top_logprobs_num": 200, "stream": True}
    body["sampling_params"] = {"max_new_tokens": 300}
    refused = answer(scripted_engine([[5]]), "/generate", body)
    assert refused.status_code == 400
    assert "60000 entries, more than 50000" in json.loads(refused.text)["error"]["message"]
    served = answer(scripted_engine([[5]]), "/generate", body, incremental_streaming_output=True)
    assert served.status_code == 200
