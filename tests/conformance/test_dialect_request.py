"""Dialects, the request side: an ask is rendered, and read back as what it asked for."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_answers import answered

from tokenwire.ask import OMIT, Ask, Asked, Turn, Wanted
from tokenwire.asking.flags import flagged, plain
from tokenwire.dialects.dialect import Dialect, Unsupported, load_dialects
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.wire.exchange import HttpRequest

GENERATE = load_dialects()["sglang-generate"]
CHAT = load_dialects()["sglang-chat"]
IDS = (73, 39, 78)


def body(dialect: Dialect, ask: Ask) -> Any:
    request = dialect.render(ask)
    assert isinstance(request, HttpRequest), request
    return request.body


def asked(dialect: Dialect, value: Any) -> Asked:
    return dialect.read_asked(HttpRequest("POST", dialect.endpoint.path, value))


def test_a_native_request() -> None:
    ask = Ask(
        input_ids=(IDS,),
        max_new_tokens=8,
        n=2,
        stream=True,
        stream_interval=4,
        stop=("a", "b"),
        stop_token_ids=(7,),
        no_stop_trim=True,
        ignore_eos=True,
        seed=5,
        logprobs=True,
        logprob_start=0,
        top_logprobs=2,
        chosen_ids=(1, 2),
        return_prompt_token_ids=True,
        return_token_ids=True,
        return_meta_info=True,
        usage=True,
        request_id="r-1",
    )
    request = GENERATE.render(ask)
    assert request == HttpRequest(
        "POST",
        "/generate",
        {
            "input_ids": [73, 39, 78],
            "sampling_params": {
                "max_new_tokens": 8,
                "n": 2,
                "stream_interval": 4,
                "stop": ["a", "b"],
                "stop_token_ids": [7],
                "no_stop_trim": True,
                "ignore_eos": True,
                "temperature": 0.0,
                "sampling_seed": 5,
            },
            "stream": True,
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 2,
            "token_ids_logprob": [1, 2],
            "return_prompt_token_ids": True,
            "rid": "r-1",
        },
    )


def test_a_chat_request() -> None:
    ask = Ask(
        messages=({"role": "user", "content": "Hi"},),
        max_new_tokens=8,
        stream=True,
        usage=True,
        top_logprobs=2,
        temperature=None,
        return_token_ids=True,
        return_meta_info=True,
    )
    assert body(CHAT, ask) == {
        "model": "default",
        "repetition_penalty": 1.0,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_completion_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
        "return_meta_info": True,
    }
    assert "stream_options" not in body(CHAT, replace(ask, stream=False))


def test_chat_input_ids_stand_beside_a_message() -> None:
    rendered = body(CHAT, Ask(input_ids=(IDS,)))
    assert rendered["input_ids"] == [73, 39, 78]
    assert len(rendered["messages"]) == 1
    messages = ({"role": "user", "content": "mine"},)
    assert body(CHAT, Ask(input_ids=(IDS,), messages=messages))["messages"] == list(messages)


@pytest.mark.parametrize(
    ("ask", "ids"),
    [
        (Ask(input_ids=(IDS,)), [73, 39, 78]),
        (Ask(input_ids=(IDS,), batch=True), [[73, 39, 78]]),
        (Ask(input_ids=(IDS, (1,))), [[73, 39, 78], [1]]),
        (Ask(input_ids=((),)), []),
    ],
)
def test_prompts_of_a_batch(ask: Ask, ids: object) -> None:
    assert body(GENERATE, ask)["input_ids"] == ids


@pytest.mark.parametrize(
    ("dialect", "ask", "reason"),
    [
        (GENERATE, Ask(messages=({"role": "user"},)), "messages"),
        (GENERATE, Ask(), "no prompt"),
        (CHAT, Ask(text=("Hi",)), "text"),
        (CHAT, Ask(input_ids=(IDS, IDS)), "one prompt"),
        (CHAT, Ask(input_ids=(IDS,), stream_interval=2), "stream_interval"),
        (CHAT, Ask(input_ids=(IDS,), logprob_start=0), "logprob_start"),
        (CHAT, Ask(input_ids=(IDS,), chosen_ids=(1,)), "chosen_ids"),
    ],
)
def test_what_an_endpoint_has_no_words_for(dialect: Dialect, ask: Ask, reason: str) -> None:
    request = dialect.render(ask)
    assert isinstance(request, Unsupported)
    assert reason in request.reason


def test_raw_is_laid_over_the_body() -> None:
    ask = Ask(input_ids=(IDS,), raw={"input_ids": "x", "sampling_params": {"top_p": 0.5}, "extra": [1]})
    assert body(GENERATE, ask) == {
        "input_ids": "x",
        "sampling_params": {"temperature": 0.0, "top_p": 0.5},
        "extra": [1],
    }
    assert "messages" not in body(CHAT, Ask(input_ids=(IDS,), raw={"messages": OMIT}))
    assert body(GENERATE, Ask(temperature=None, raw={"input_ids": []})) == {"input_ids": []}


_ASKS = st.builds(
    Ask,
    input_ids=st.lists(st.lists(st.integers(0, 2000), max_size=3).map(tuple), min_size=1, max_size=3).map(
        tuple
    ),
    batch=st.booleans(),
    max_new_tokens=st.integers(0, 300),
    n=st.integers(1, 3),
    stream=st.booleans(),
    stream_interval=st.none() | st.integers(1, 50),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=2).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    no_stop_trim=st.booleans(),
    ignore_eos=st.booleans(),
    temperature=st.sampled_from([0.0, 1.0, None]),
    seed=st.none() | st.integers(0, 9),
    logprobs=st.booleans(),
    logprob_start=st.none() | st.integers(0, 3),
    top_logprobs=st.integers(0, 3),
    chosen_ids=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    return_prompt_token_ids=st.booleans(),
    request_id=st.none() | st.text(min_size=1, max_size=3),
)


@given(_ASKS)
@settings(deadline=None)
def test_what_was_asked_is_read_back(ask: Ask) -> None:
    read = asked(GENERATE, body(GENERATE, ask))
    for name in [
        "input_ids",
        "max_new_tokens",
        "n",
        "stream",
        "stream_interval",
        "stop",
        "stop_token_ids",
        "no_stop_trim",
        "ignore_eos",
        "seed",
        "logprob_start",
        "top_logprobs",
        "chosen_ids",
        "request_id",
    ]:
        assert getattr(read, name) == getattr(ask, name), name
    assert read.prompts == len(ask.input_ids)
    assert read.batch == (ask.batch or len(ask.input_ids) > 1 or ask.n > 1)
    assert read.return_prompt_token_ids == ask.return_prompt_token_ids
    assert read.greedy == (ask.temperature == 0.0)
    wants_logprobs = ask.logprobs or ask.top_logprobs or ask.chosen_ids or ask.logprob_start is not None
    assert read.logprobs == bool(wants_logprobs)
    assert bool(read.key) == (read.greedy or ask.seed is not None)


def test_defaults() -> None:
    native = asked(GENERATE, {"text": "a"})
    assert (native.max_new_tokens, native.greedy, native.text_prompt, native.input_ids) == (
        128,
        False,
        True,
        None,
    )
    assert asked(GENERATE, {"text": "a", "sampling_params": {"max_new_tokens": None}}).max_new_tokens is None
    assert asked(CHAT, {"messages": []}).max_new_tokens is None
    assert asked(CHAT, {"messages": [{}], "max_tokens": 7}).max_new_tokens == 7
    assert (
        asked(GENERATE, {"text": "a", "return_logprob": True, "logprob_start_len": -1}).logprob_start is None
    )
    assert asked(GENERATE, {"text": "a", "sampling_params": {"stop": "x"}}).stop == ("x",)
    assert asked(GENERATE, {"text": ["a", "b"]}).prompts == 2
    assert asked(GENERATE, {"text": ["a", "b"], "input_ids": [[1], [2]]}).batch
    assert not asked(GENERATE, {"text": ["a", "b"], "input_ids": [1]}).batch


def test_greedy_is_said_in_two_ways() -> None:
    for params in ({"temperature": 0}, {"temperature": 1e-7}, {"top_k": 1}):
        assert asked(GENERATE, {"text": "a", "sampling_params": params}).greedy, params
    for params in ({"temperature": 0.1}, {"temperature": 1e-6}, {"temperature": False}, {"top_k": True}, {}):
        assert not asked(GENERATE, {"text": "a", "sampling_params": params}).greedy, params


def test_items_of_a_batch_may_differ() -> None:
    value = {
        "input_ids": [[1], [2]],
        "sampling_params": [
            {"temperature": 0, "max_new_tokens": 1},
            {"temperature": 0, "max_new_tokens": 64},
        ],
        "return_logprob": [True, False],
    }
    read = asked(GENERATE, value)
    assert (read.prompts, read.max_new_tokens, read.greedy, read.logprobs) == (2, None, True, True)
    assert read.key
    other = asked(GENERATE, {**value, "sampling_params": list(reversed(value["sampling_params"]))})
    assert other.key != read.key
    mixed = asked(GENERATE, {**value, "sampling_params": [{"temperature": 0}, {"temperature": 1}]})
    assert not mixed.key


def test_return_token_ids_of_chat_asks_for_prompt_ids_too() -> None:
    read = asked(CHAT, {"messages": [{}], "return_token_ids": True})
    assert (read.return_prompt_token_ids, read.return_token_ids, read.return_meta_info) == (True, True, False)


@pytest.mark.parametrize("value", ["abc", 7, [1, "2"], [1, 2.0], [True], [[1], 2], [None]])
def test_malformed_input_ids_are_no_prompt_and_have_no_key(value: object) -> None:
    read = asked(GENERATE, {"input_ids": value, "sampling_params": {"temperature": 0}})
    assert (read.input_ids, read.key, read.ids_key) == (None, "", "")


def test_each_prompt_may_have_a_budget_of_its_own() -> None:
    params = [{"max_new_tokens": 9, "n": 2}, {"max_new_tokens": 1, "n": 2}]
    batch = asked(GENERATE, {"input_ids": [[1], [2]], "sampling_params": params})
    assert (batch.max_new_tokens, batch.budgets) == (None, (9, 1))
    assert [batch.budget(choice) for choice in range(4)] == [9, 9, 1, 1]
    assert asked(GENERATE, {"input_ids": [[1], [2]], "sampling_params": [params[0]] * 2}).budget(3) == 9


def test_what_only_a_table_knows_is_wanted_where_it_is_true() -> None:
    body = {"input_ids": [1], "return_hidden_states": True, "return_routed_experts": False}
    assert asked(GENERATE, body).wanted == (Wanted("return_hidden_states", ("hidden_states",)),)
    chat = asked(CHAT, {"messages": [], "return_routed_experts": True}).wanted
    assert chat == (Wanted("return_routed_experts", ("routed_experts",), ("/sglext/routed_experts",)),)


def test_how_tokens_are_told_is_no_sampling_and_makes_no_answers_alike() -> None:
    body = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 3, "temperature": 0}}
    plain, text = (
        load_dialects()["vllm-generate"].read_asked(HttpRequest("POST", "/inference/v1/generate", sent))
        for sent in (body, {**body, "output_mode": "text"})
    )
    assert (text.likeliest, text.constrained, text.form) == (True, False, '{"output_mode":"text"}')
    assert plain.key != text.key


@pytest.mark.parametrize("name", sorted(load_dialects()))
def test_every_field_that_asks_to_be_told_is_sent_as_a_flag(name: str) -> None:
    dialect = load_dialects()[name]
    labels = flagged(dialect, replace(plain(dialect), stream=True))
    assert {str(place[-1]).replace("_", "-") for place in dialect.request.asks} <= labels.keys()
    for label, ask in labels.items():
        wanted = asked(dialect, body(dialect, ask)).wanted
        assert [item.wire_name.replace("_", "-") for item in wanted] == [label] * len(wanted)


@pytest.mark.parametrize("name", sorted(load_dialects()))
def test_no_field_that_asks_to_be_told_hides_among_those_that_only_shape_the_report(name: str) -> None:
    """What a request asks for is judged; a form of it is not, nor what need not be there."""
    table = read_yaml(spec_root() / "dialects" / f"{name}.yaml")["request"]
    hidden = {pointer for pointer in table.get("report_only", ()) if pointer.startswith("/return_")}
    forms = {pointer for pointer in hidden if pointer.startswith("/return_flat_raw_")}
    assert hidden - forms <= {
        "/return_cached_tokens_details",
        "/return_spec_tokens_details",
        "/return_progress",
    }


@pytest.mark.parametrize("field", ["image_data", "video_data", "audio_data"])
@pytest.mark.parametrize(
    ("value", "counts"), [("bytes", True), (["bytes"], True), ([], False), (None, False)]
)
def test_all_media_of_the_native_endpoint_count(field: str, value: Any, counts: bool) -> None:
    given = {"text": "See", field: value}
    assert asked(load_dialects()["sglang-generate"], given).media is counts


def test_a_body_that_is_no_object_asks_for_nothing() -> None:
    for request in (
        HttpRequest("POST", "/generate", None, b"{broken"),
        HttpRequest("POST", "/generate", None, b"\xff"),
        HttpRequest("POST", "/generate", [1]),
        HttpRequest("POST", "/generate"),
    ):
        assert GENERATE.read_asked(request) == Asked()
    raw = b'{"input_ids": [1, 2], "stream": true}'
    assert GENERATE.read_asked(HttpRequest("POST", "/generate", None, raw)).input_ids == ((1, 2),)


_BASE = Ask(input_ids=(IDS,), max_new_tokens=8)


@pytest.mark.parametrize("dialect", [GENERATE, CHAT])
@pytest.mark.parametrize(
    "delivery",
    [
        {"stream": True},
        {"stream": True, "usage": True},
        {"logprobs": True},
        {"top_logprobs": 2},
        {"return_prompt_token_ids": True},
        {"return_token_ids": True, "return_meta_info": True},
        {"request_id": "r"},
        {"raw": {"priority": 3}},
        {"raw": {"top_p": 1.0}},
    ],
)
def test_what_shapes_only_the_delivery_does_not_split_keys(
    dialect: Dialect, delivery: dict[str, Any]
) -> None:
    if dialect is GENERATE and "top_p" in delivery.get("raw", {}):
        delivery = {"raw": {"sampling_params": {"top_p": 1.0}}}
    base = asked(dialect, body(dialect, _BASE))
    other = asked(dialect, body(dialect, replace(_BASE, **delivery)))
    assert base.key == other.key != ""
    assert base.ids_key == other.ids_key != ""


def test_the_interval_does_not_split_keys() -> None:
    keys = {
        asked(GENERATE, body(GENERATE, replace(_BASE, stream=True, stream_interval=i))).key
        for i in (None, 1, 7)
    }
    assert len(keys) == 1


@pytest.mark.parametrize("dialect", [GENERATE, CHAT])
@pytest.mark.parametrize(
    "shape",
    [
        {"input_ids": ((73, 39),)},
        {"max_new_tokens": 9},
        {"n": 2},
        {"stop": ("a",)},
        {"stop_token_ids": (1,)},
        {"no_stop_trim": True},
        {"ignore_eos": True},
        {"raw": {"logit_bias": {"1": 5}}},
        {"raw": {"regex": "a+"}},
    ],
)
def test_what_shapes_the_result_splits_keys(dialect: Dialect, shape: dict[str, Any]) -> None:
    base = asked(dialect, body(dialect, _BASE))
    other = asked(dialect, body(dialect, replace(_BASE, **shape)))
    assert base.key != other.key != ""
    assert base.ids_key != other.ids_key


def test_a_bias_for_digits_without_end_is_none() -> None:
    """Python refuses to read so many, and a client's request would end the watcher's judge."""
    request = body(CHAT, replace(_BASE, raw={"logit_bias": {"9" * 5000: 5, "7": 1}}))
    assert asked(CHAT, request).logit_bias == {7: 1.0}


def test_seeds_split_the_keys_of_sampled_results_only() -> None:
    def key(**options: Any) -> str:
        return asked(GENERATE, body(GENERATE, replace(_BASE, **options))).key

    assert key(seed=1) == key(seed=2)
    assert key(temperature=1.0, seed=1) == key(temperature=1.0, seed=1) != key(temperature=1.0, seed=2)
    assert key(temperature=0.7, seed=1) != key(temperature=1.0, seed=1)
    assert key(temperature=1.0) == ""


def test_endpoints_share_the_key_of_the_same_ids() -> None:
    native, chat = (asked(dialect, body(dialect, _BASE)) for dialect in (GENERATE, CHAT))
    assert native.ids_key == chat.ids_key != ""
    assert native.key != chat.key
    other_dummy = replace(_BASE, messages=({"role": "user", "content": "other"},))
    assert asked(CHAT, body(CHAT, other_dummy)).key == chat.key, "messages beside input_ids do not count"


@pytest.mark.parametrize(
    ("dialect", "value"),
    [
        pytest.param(GENERATE, {"text": "a"}, id="text"),
        pytest.param(GENERATE, {"input_ids": [1], "text": "a"}, id="text-beside-ids"),
        pytest.param(GENERATE, {"input_ids": [[1]]}, id="batch"),
        pytest.param(GENERATE, {"input_ids": [1], "sampling_params": {"n": 2}}, id="samples"),
        pytest.param(
            GENERATE, {"input_ids": [1], "sampling_params": {"repetition_penalty": 1.1}}, id="penalty"
        ),
        pytest.param(
            GENERATE, {"input_ids": [1], "sampling_params": {"temperature": 1, "sampling_seed": 1}}, id="seed"
        ),
        pytest.param(GENERATE, {"input_ids": [1], "sampling_params": {"min_new_tokens": 2}}, id="minimum"),
        pytest.param(GENERATE, {"input_ids": [1], "sampling_params": {"stop_regex": "a"}}, id="pattern"),
        pytest.param(CHAT, {"messages": [{}], "max_tokens": 4, "repetition_penalty": 1.0}, id="messages"),
        pytest.param(CHAT, {"input_ids": [1], "max_tokens": 4}, id="unsaid-penalty-of-the-model"),
        pytest.param(CHAT, {"input_ids": [1], "repetition_penalty": 1.0}, id="no-budget"),
    ],
)
def test_what_is_not_comparable_across_endpoints(dialect: Dialect, value: dict[str, Any]) -> None:
    greedy = (
        {"temperature": 0}
        if dialect is CHAT
        else {"sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    )
    merged = {**greedy, **value}
    if "sampling_params" in value:
        merged["sampling_params"] = {**greedy["sampling_params"], **value["sampling_params"]}  # type: ignore[dict-item]  # one shape
    read = asked(dialect, merged)
    assert read.key
    assert read.ids_key == ""


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = [
    "input_ids",
    "text",
    "messages",
    "sampling_params",
    "stream",
    "rid",
    "n",
    "temperature",
    "return_logprob",
]
_PARAMS = ["n", "stop", "temperature", "max_new_tokens", "stop_token_ids", "stream_interval", "sampling_seed"]


@given(
    st.dictionaries(st.sampled_from(_FIELDS), _JSON),
    st.none()
    | st.dictionaries(st.sampled_from(_PARAMS), _JSON)
    | st.lists(st.dictionaries(st.sampled_from(_PARAMS), _JSON)),
)
@settings(deadline=None)
def test_no_request_is_too_odd_to_be_read(value: dict[str, Any], params: Any) -> None:
    if params is not None:
        value["sampling_params"] = params
    for dialect in (GENERATE, CHAT):
        read = asked(dialect, value)
        assert isinstance(read.stream, bool)
        assert all(type(token) is int for prompt in read.input_ids or () for token in prompt)


def test_what_a_session_ran_before_is_part_of_the_prompt() -> None:
    """SGLang runs the prompt and the answer of the request that `rid` names, then the ids that were sent."""
    sent = {"input_ids": [200, 201], "sampling_params": {"temperature": 0}, "session_params": {"id": "s"}}
    first = asked(GENERATE, sent)
    assert first.input_ids == ((200, 201),)
    assert first.prompt_key
    turn = asked(GENERATE, sent | {"session_params": {"id": "s", "rid": "first"}})
    assert not turn.input_ids
    assert (turn.prompt_key, turn.ids_key) == ("", "")
    assert turn.key not in {"", first.key}
    assert turn.turn == Turn("first", 0, (200, 201), "s")
    assert turn.sent.keys() >= {"input_ids"}  # else it would be a request without a prompt


@pytest.mark.parametrize(
    ("dialect", "fields", "headers", "rank"),
    [
        ("sglang-generate", {"routed_dp_rank": 1}, (), 1),
        ("sglang-chat", {"data_parallel_rank": 0}, (), 0),
        ("sglang-generate", {}, (("X-data-parallel-rank", "1"),), None),
        ("vllm-chat", {"data_parallel_rank": 1}, (("x-Data-Parallel-Rank", "-1"),), -1),
        ("vllm-generate", {}, (("x-data-parallel-rank", "a"),), None),
    ],
)
def test_the_rank_that_a_request_names_is_read_where_its_family_reads_it(dialect, fields, headers, rank):
    spoken = load_dialects()[dialect]
    request = HttpRequest("POST", spoken.endpoint.path, fields, headers=headers)
    assert spoken.read_asked(request).rank == rank


@pytest.mark.parametrize(
    ("dialect", "fields", "named"),
    [
        ("sglang-chat", {"model": "tiny:first"}, ("model", "first")),
        ("sglang-completions", {"model": "tiny:first", "lora_path": "second"}, ("lora_path", "second")),
        ("sglang-chat", {"model": "tiny"}, None),
        ("sglang-generate", {"model": "tiny:first"}, None),
        ("vllm-chat", {"model": "tiny:first"}, ("model", "tiny:first")),
    ],
)
def test_an_adapter_is_read_where_its_family_names_it(dialect, fields, named):
    """SGLang takes it behind the model's name, too, but not at its native endpoint; vLLM as the model."""
    spoken = load_dialects()[dialect]
    adapter = spoken.read_asked(HttpRequest("POST", spoken.endpoint.path, fields)).adapter
    assert (adapter and (adapter.wire_name, *adapter.values)) == named


def test_what_an_adapter_is_asked_is_related_to_no_answer_of_the_model():
    sent = {"input_ids": [5, 6], "messages": [], "temperature": 0, "max_tokens": 1, "repetition_penalty": 1.0}
    exchanges = [
        answered("sglang-chat", sent | {"model": model}, {}).exchange
        for model in ("tiny:first", "tiny:nobody")
    ]
    keys = [CHAT.read(exchange, adapters=("first", "second")).asked.ids_key for exchange in exchanges]
    assert keys[0] == ""
    assert keys[1]


@pytest.mark.parametrize(
    ("rows", "start", "chosen"),
    [
        ([[4, 5], [6]], 1, ((4, 5), (6,))),
        ([[4], [-1]], None, ((4,), (-1,))),
        ([4, 5], 0, ()),
        ([[4], ["5"]], 0, ()),
        ([[4], [True]], 0, ()),
        ([], 0, ()),
        (True, "1", ()),
    ],
)
def test_rows_of_ids_for_the_prompt_are_read_and_asked_for(rows: Any, start: Any, chosen: Any) -> None:
    params = {"prompt_logprob_token_ids": rows, "prompt_logprob_start": start}
    sent = HttpRequest("POST", "/inference/v1/generate", {"token_ids": [1, 2, 3], "sampling_params": params})
    asked = load_dialects()["vllm-generate"].read_asked(sent)
    assert asked.prompt_chosen == chosen
    assert asked.prompt_chosen_start == (start if type(start) is int else 0)
    named = [name for wanted in asked.wanted for name in wanted.names]
    assert named == (["prompt_token_id_logprobs"] if chosen or rows is True else [])
    assert not asked.other_sampling
