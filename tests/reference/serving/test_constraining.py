"""Constraints that cost much: who asks for them waits or is refused, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
from llguidance import LLMatcher, LLParserLimits

from tokenwire_reference.assembly import make_engine
from tokenwire_reference.core.request import Request, SamplingParams, SequenceError
from tokenwire_reference.doors import constraining
from tokenwire_reference.doors.constraining import Constraining
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.extras import constraints, grammar_trial
from tokenwire_reference.extras.builtin import byte_level_tokenizer
from tokenwire_reference.extras.constraints import Compiled, ConstraintError, Grammar, OfModel, grammar_of
from tokenwire_reference.running import trials
from tokenwire_reference.server_args import ServerArgs

MULTIPLES = {"type": "integer", "multipleOf": 1_000_003}
"""Some 20 s and 300 MB."""
INTERSECTION = {"allOf": [{"type": "string", "pattern": f".*{chr(97 + i)}.{{20}}$"} for i in range(20)]}
"""Does not end."""
LARGE = {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(1000)}}
HELLO = [{"role": "user", "content": "Hello"}]
SHORT = {"constraint_seconds": 0.2, "constraint_megabytes": 4096}
LONG = 60.0
MODEL = SimpleNamespace(vocab_size=736, eos_token_ids=frozenset({2}))


def generate(schema, **sampling):
    return {
        "text": "hi",
        "sampling_params": {"max_new_tokens": 2, "json_schema": json.dumps(schema), **sampling},
    }


EBNF = {"text": "hi", "sampling_params": {"ebnf": f"start: %json {json.dumps(MULTIPLES)}"}}


def tool(schema):
    return {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}, "strict": True}


def format_of(schema):
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def flat_format(schema):
    return {"type": "json_schema", "name": "s", "schema": schema}


@pytest.fixture
def engine(tiny):
    return make_engine(tiny)


@pytest.fixture
def built(monkeypatch):
    """The names of the threads of this process that started a grammar."""
    names = Counter()
    original = grammar_trial.started

    def started(tokens, grammar):
        names[threading.current_thread().name] += 1
        return original(tokens, grammar)

    monkeypatch.setattr(constraints, "started", started)
    return names


@pytest.fixture
def tried(monkeypatch):
    """How many trials were run."""
    lines = []
    original = trials.Trials.run

    async def run(self, line):
        lines.append(line)
        return await original(self, line)

    monkeypatch.setattr(trials.Trials, "run", run)
    return lines


@pytest.mark.parametrize(
    "asked",
    [
        ("/generate", generate(MULTIPLES, n=4), "json_schema", {}),
        ("/generate", generate(INTERSECTION), "json_schema", {}),
        (
            "/generate",
            {"text": "hi", "sampling_params": {"ebnf": f"start: %json {json.dumps(MULTIPLES)}"}},
            "ebnf",
            {},
        ),
        ("/v1/completions", {"prompt": "hi", "response_format": format_of(MULTIPLES)}, "response_format", {}),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "response_format": format_of(MULTIPLES)},
            "response_format",
            {},
        ),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "stream": True, "structured_outputs": {"json": MULTIPLES}},
            "json",
            {"api_dialect": "vllm"},
        ),
        (
            "/v1/chat/completions",
            {
                "messages": HELLO,
                "tools": [{"type": "function", "function": tool(MULTIPLES)}],
                "tool_choice": "required",
            },
            "tools",
            {"tool_call_parser": "hermes"},
        ),
        ("/v1/responses", {"input": "hi", "text": {"format": flat_format(MULTIPLES)}}, "response_format", {}),
        (
            "/v1/messages",
            {"messages": HELLO, "max_tokens": 9, "output_config": {"format": flat_format(MULTIPLES)}},
            "response_format",
            {},
        ),
    ],
)
def test_a_constraint_that_costs_too_much_is_refused_at_every_door(answers, call, engine, built, asked):
    """And a neighbour needs as many steps of the engine as it needs alone."""
    path, body, field, flags = asked
    steps = []
    step = engine.step
    engine.step = lambda: steps.append(1) or step()
    neighbour = call(
        "/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    )
    options = {"tokenizer": byte_level_tokenizer(), **SHORT, **flags}
    refused, served = answers(engine, call(path, body), neighbour, **options)
    assert refused.status_code == 400, refused.text
    assert field in refused.text
    assert "0.2 s of CPU time (--constraint-seconds)" in refused.text
    assert served.status_code == 200
    assert len(steps) == 4
    assert not built


def test_a_large_constraint_is_compiled_once_for_all_samples(answer, engine, built, tried):
    response = answer(engine, "/generate", generate(LARGE, n=128), tokenizer=byte_level_tokenizer())
    assert response.status_code == 200, response.text
    assert len(response.json()) == 128
    assert len(tried) == 1
    assert sum(built.values()) == 1
    assert not built.keys() & {"engine", "MainThread"}


def test_equal_constraints_of_several_requests_are_compiled_once(answers, call, engine, built, tried):
    bodies = [generate(schema) for schema in (LARGE, LARGE, {"type": "boolean"})]
    calls = [call("/generate", body) for body in bodies]
    found = answers(engine, *calls, *calls, tokenizer=byte_level_tokenizer())
    assert [response.status_code for response in found] == [200] * 6
    assert (len(tried), sum(built.values())) == (2, 2)


def test_no_process_is_started_for_requests_without_a_constraint(answer, engine, monkeypatch):
    monkeypatch.setattr(constraining, "Trials", None)
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 2}}
    assert answer(engine, "/generate", body, tokenizer=byte_level_tokenizer()).status_code == 200


def test_memory_is_a_limit_too(answer, engine):
    flags = {"constraint_megabytes": 2, "constraint_seconds": LONG, "tokenizer": byte_level_tokenizer()}
    response = answer(engine, "/generate", generate({"type": "integer", "multipleOf": 100_003}), **flags)
    assert response.status_code == 400
    assert "json_schema: it takes more than 2 MiB (--constraint-megabytes)" in response.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"regex": "a" * ((1 << 18) + 1)}, "sampling_params.regex"),
        ({"json_schema": json.dumps({"enum": ["a" * (1 << 18)]})}, "sampling_params.json_schema"),
        ({"ebnf": "x" * ((1 << 18) + 1)}, "262144"),
    ],
)
def test_a_constraint_that_is_too_long_is_refused(answer, engine, body, words):
    body = {"text": "hi", "sampling_params": body}
    response = answer(engine, "/generate", body, tokenizer=byte_level_tokenizer())
    assert response.status_code == 400
    assert words in response.text


def test_a_schema_in_a_response_format_that_is_too_long_is_refused(answer, engine):
    body = {"messages": HELLO, "response_format": format_of({"enum": ["a" * (1 << 18)]})}
    response = answer(engine, "/v1/chat/completions", body, tokenizer=byte_level_tokenizer())
    assert response.status_code == 400
    assert "response_format has 262" in response.text
    assert "and may have 262144" in response.text


def test_many_constraints_of_one_request_are_refused(answer, engine, tried):
    params = [{"regex": f"a{{{count}}}", "max_new_tokens": 1} for count in range(1, 66)]
    body = {"text": ["hi"] * 65, "sampling_params": params}
    response = answer(engine, "/generate", body, tokenizer=byte_level_tokenizer())
    assert response.status_code == 400
    assert "regex: 65 different constraints are in one request" in response.text
    assert not tried


def request_with(schema):
    grammar = Grammar(*grammar_of({"json_schema": json.dumps(schema)}), None)
    return Request("r", (1,), SamplingParams(constraint=grammar))


def test_a_compilation_ends_with_the_last_request_that_waits_for_it(monkeypatch):
    """The only process would work on it for an hour, and is free again."""
    monkeypatch.setattr(constraining, "_PROCESSES", 1)
    write, working = trials._write, threading.Event()

    def written(process, line):
        write(process, line)
        if b"allOf" in line:
            working.set()

    monkeypatch.setattr(trials, "_write", written)

    async def story():
        compiling = Constraining(ServerArgs(constraint_seconds=3600))
        prepare = compiling.prepare
        tokenizer = byte_level_tokenizer()
        try:
            async with asyncio.timeout(LONG):
                first, second = (
                    asyncio.create_task(prepare([request_with(INTERSECTION)], tokenizer, MODEL)) for _ in "ab"
                )
                assert await asyncio.to_thread(working.wait, LONG)
                behind = asyncio.create_task(prepare([request_with({"type": "null"})], tokenizer, MODEL))
                first.cancel()
                await asyncio.wait([first])
                assert first.cancelled()
                assert not second.done()
                second.cancel()
                await behind
        finally:
            await asyncio.to_thread(compiling.close)

    asyncio.run(story())


def test_a_program_that_dies_is_one_honest_error_and_is_started_again(monkeypatch):
    monkeypatch.setattr(constraining, "_PROCESSES", 1)
    start, begun = trials.Trials._start, []

    def started(self):
        process = start(self)
        if not begun:
            process.kill()
            process.wait()
        begun.append(process)
        return process

    monkeypatch.setattr(trials.Trials, "_start", started)

    async def story():
        compiling = Constraining(ServerArgs())
        try:
            with pytest.raises(RefusalError, match="json_schema: the constraint was not compiled") as refused:
                await compiling.prepare([request_with({"type": "null"})], byte_level_tokenizer(), MODEL)
            assert refused.value.status == 500
            await compiling.prepare([request_with({"type": "null"})], byte_level_tokenizer(), MODEL)
        finally:
            await asyncio.to_thread(compiling.close)

    asyncio.run(story())
    assert len(begun) == 2


def test_what_is_kept_is_forgotten_when_it_grows_too_large(monkeypatch, tried):
    monkeypatch.setattr(constraining, "MOST_KEPT_BYTES", constraining._REFUSAL_BYTES)

    async def story():
        compiling = Constraining(ServerArgs())
        try:
            for word in ("a(", "b(", "b(", "a("):
                request = Request(
                    "r", (1,), SamplingParams(constraint=Grammar("regex", f"word: /{word}/", None))
                )
                with pytest.raises(RefusalError, match="regex"):
                    await compiling.prepare([request], byte_level_tokenizer(), MODEL)
        finally:
            await asyncio.to_thread(compiling.close)

    asyncio.run(story())
    assert len(tried) == 3


def test_constraints_of_requests_under_way_are_bounded_together(monkeypatch):
    monkeypatch.setattr(constraining, "MOST_BYTES", -1)

    async def story():
        compiling = Constraining(ServerArgs())
        with pytest.raises(
            RefusalError, match="json_schema: the constraints of requests under way"
        ) as refused:
            await compiling.prepare([request_with({"type": "null"})], byte_level_tokenizer(), MODEL)
        assert refused.value.status == 503

    asyncio.run(story())


def matcher_of(schema, **limits):
    tokens = constraints._tokens(OfModel(byte_level_tokenizer(), MODEL.vocab_size, MODEL.eos_token_ids))
    grammar = Grammar(*grammar_of({"json_schema": json.dumps(schema)}), None)
    matcher = LLMatcher(tokens, grammar.source, log_level=0, limits=LLParserLimits(**limits))
    grammar.use(Compiled(matcher, 0))
    return grammar.start()


def test_a_mask_that_crosses_a_limit_of_llguidance_is_an_error():
    matcher = matcher_of(LARGE, max_items_in_row=500)
    ids = byte_level_tokenizer().encode('{"property_0": "a", "', add_special_tokens=False)
    matcher.allowed([])
    words = r"json_schema cannot be followed beyond \d+ tokens: .* max is 500"
    with pytest.raises(ConstraintError, match=words):
        list(map(matcher.allowed, (ids[:count] for count in range(1, len(ids) + 1))))


def test_a_mask_that_takes_long_is_an_error(monkeypatch):
    monkeypatch.setattr(constraints, "MOST_MASK_SECONDS", -1)
    with pytest.raises(ConstraintError, match="a mask took more than -1 s of CPU time"):
        matcher_of(LARGE).allowed([])


class Failing:
    """A constraint that cannot be followed beyond its second token."""

    class Error(SequenceError):
        status_code = 400

    def start(self):
        return self

    def allowed(self, output_ids, drafts=()):
        if len(output_ids) + len(drafts) >= 2:
            raise self.Error("too much")
        return b"\xff" * 92


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_constraint_that_fails_ends_its_own_request(tiny, drafts):
    from tokenwire_reference.core.engine import EngineArgs

    engine = make_engine(tiny, EngineArgs(speculative_num_draft_tokens=drafts))
    sampling = {"max_new_tokens": 6, "ignore_eos": True}
    failing = Request("a", (5, 6, 5, 6, 5), SamplingParams(constraint=Failing(), **sampling))
    neighbour = Request("b", (5, 6, 5, 6, 5), SamplingParams(**sampling))
    for request in (failing, neighbour):
        engine.add(request)
    while not engine.idle:
        engine.step()
    engine.check_integrity()
    assert (failing.finish.type, failing.finish.status_code, failing.finish.message) == (
        "abort",
        400,
        "too much",
    )
    assert len(failing.output_ids) <= 2
    assert (neighbour.finish.type, len(neighbour.output_ids)) == ("length", 6)
