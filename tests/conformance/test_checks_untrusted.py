"""What a target wrote may be any JSON: no check may raise for it, nor the search for a parrot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from known_answer_pairs import PARROT
from letter_tokenizer import LetterTokenizer
from stream_builder import build

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.ask import Asked
from tokenwire.checks.check import CHECKS, Target
from tokenwire.parrot.recognition import recognised
from tokenwire.record import CallPiece, Choice, Delivery, Emission, Finish, Stream
from tokenwire.target.determinism import Comparison
from tokenwire.wire.exchange import Ending

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([10**400, 0, 1, 2, -1])
    | st.floats()
    | st.text(max_size=3)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
entries = st.lists(scalars, max_size=3) | st.fixed_dictionaries({"logprob": values, "token_id": values})
lists = st.lists(values | entries | st.lists(entries, max_size=3), max_size=4)


def named(*names: str, value: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), value, max_size=len(names))


series = named(
    "output_token_logprobs",
    "output_top_logprobs",
    "output_token_ids_logprobs",
    "logprobs_content",
    "tokens",
    "token_logprobs",
    "top_logprobs",
    "text_offset",
    "mirror_token_id",
    "mirror_position",
    "x",
    value=values | lists,
)
prompt_series = named(
    "input_token_logprobs",
    "input_top_logprobs",
    "input_token_ids_logprobs",
    "prompt_logprobs",
    "token_logprobs",
    value=values | lists,
)
counters = named(
    "completion_tokens",
    "prompt_tokens",
    "cached_tokens",
    "output_token_logprobs_length",
    value=st.integers(0, 5) | values,
)
details = named(
    "request_id",
    "role",
    "content",
    "meta_info",
    "logprobs",
    "cached_tokens_details",
    "output_token_logprobs_length",
    "prompt_token_id_logprobs",
    value=values
    | st.fixed_dictionaries({"device": values, "host": values, "completion_tokens": values})
    | st.fixed_dictionaries({"content": values | lists, "text_offset": lists, "tokens": values | lists}),
)
calls = st.builds(
    CallPiece,
    pointer=st.just("/somewhere"),
    position=st.integers(0, 1),
    index=st.integers(0, 2) | values,
    id=values,
    type=values,
    name=values,
    arguments=st.sampled_from([None, "", "{", "{}"]) | values,
)
finishes = st.builds(
    Finish,
    type=st.sampled_from(["stop", "length", "abort", "", "tool_calls"]),
    matched=values,
    length=st.none() | st.integers(),
    raw=values,
    code=values,
)
asks = st.builds(
    Asked,
    stream=st.booleans(),
    prompts=st.integers(0, 3),
    n=st.integers(-1, 3),
    input_ids=st.none() | st.lists(st.lists(st.integers(), max_size=3).map(tuple), max_size=3).map(tuple),
    text_prompt=st.booleans(),
    max_new_tokens=st.none() | st.integers(-1, 5),
    stream_interval=st.none() | st.integers(-2, 4),
    stop=st.sampled_from([(), ("a",), ("",)]),
    stop_token_ids=st.sampled_from([(), (2,)]),
    stop_regex=st.sampled_from([(), ("a.",), ("[",)]),
    no_stop_trim=st.booleans(),
    skip_special_tokens=st.booleans(),
    ignore_eos=st.booleans(),
    greedy=st.booleans(),
    temperature=st.sampled_from([None, 0.0, 0.5, 1.0]),
    echo=st.booleans(),
    prompt_key=st.sampled_from(["", "{", '[null,{"text":"a"}]', '[null,{"messages":[{"content":"a"}]}]']),
    logprobs=st.booleans(),
    logprob_start=st.none() | st.integers(0, 4),
    top_logprobs=st.integers(-1, 3),
    chosen_ids=st.sampled_from([(), (5,)]),
    prompt_chosen=st.sampled_from([(), ((5,), (6, -1)), ((), ())]),
    prompt_chosen_start=st.integers(-1, 2),
    return_prompt_token_ids=st.booleans(),
    return_token_ids=st.booleans(),
    return_meta_info=st.booleans(),
    request_id=st.none() | st.just("r"),
    key=st.sampled_from(["", "k"]),
    ids_key=st.sampled_from(["", "i"]),
)
KEYS = ("text", "output_ids", "prompt_token_ids", "content", "meta_info")


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """A stream whose every field is what a target might write, with up to two choices."""
    delivery = draw(st.sampled_from(list(Delivery)))
    base = build(
        delivery,
        dialect=draw(st.sampled_from(["sglang-generate", "sglang-chat", "vllm-completions", "unheard-of"])),
        body=draw(st.none() | st.fixed_dictionaries({"input_ids": values})),
        name=draw(st.sampled_from(["one", "other"])),
    )
    count = len(base.events) if delivery is not Delivery.WHOLE else 2
    emissions = [
        draw(
            st.builds(
                Emission,
                event=st.just(base.events[index % len(base.events)]),
                choice=st.integers(0, 1),
                pointers=st.dictionaries(st.sampled_from(KEYS), st.just("/somewhere")),
                text=st.none() | st.text(st.sampled_from("ab"), max_size=3),
                reasoning=st.none() | st.text(st.sampled_from("ab"), max_size=3),
                calls=st.lists(calls, max_size=2).map(tuple),
                output_ids=st.none() | st.lists(st.integers(0, 3) | values, max_size=3),
                prompt_token_ids=st.none() | st.lists(values, max_size=3),
                series=series,
                customized=st.sampled_from([frozenset(), frozenset({"x", "mirror_token_id"})]),
                prompt_series=prompt_series,
                counters=counters,
                details=details,
                finish=st.none() | finishes,
            )
        )
        for index in range(draw(st.integers(0, count)))
    ]
    choices = tuple(
        Choice(index, delivery, emissions=theirs)
        for index in (0, 1)
        if (theirs := tuple(emission for emission in emissions if emission.choice == index))
    )
    exchange = replace(
        base.exchange,
        status=draw(st.sampled_from([None, 200, 400, 404, 500])),
        ending=draw(st.sampled_from(list(Ending))),
    )
    return replace(
        base,
        exchange=exchange,
        asked=draw(asks),
        choices=choices,
        refused=exchange.status in {400, 404},
        error=draw(st.none() | values),
        usage=draw(st.none() | named("prompt_tokens", "completion_tokens", "total_tokens", value=values)),
    )


@given(
    st.lists(streams(), min_size=1, max_size=3),
    st.sampled_from(
        [
            Target(tokenizer=LetterTokenizer()),
            Target(stream_interval=2, advertised_delivery=Delivery.CUMULATIVE),
            PARROT,
        ]
    ),
)
def test_no_check_raises_and_no_parrot_is_heard(run: list[Stream], target: Target) -> None:
    for check in CHECKS.values():
        for stream in run:
            if check.on_stream is not None:
                list(check.on_stream(stream, target))
            if check.on_comparison is not None:
                list(check.on_comparison(Comparison(run[0], stream), target))
        if check.on_run is not None:
            list(check.on_run(tuple(run), target))
    assert recognised(run) is None
