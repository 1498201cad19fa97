from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from canned import CannedSender
from hand_made_stream import ids_stream
from hypothesis import given
from hypothesis import strategies as st
from item_answers import message, response
from recorded import IDS, document
from stream_builder import Reply, cumulative, incremental

from tokenwire.ask import Ask
from tokenwire.asking.scenario import (
    PROMPT,
    SCENARIOS,
    Conversation,
    Transcript,
    load_scenarios,
    only_choice,
    scenario,
    text_of,
    token_ids,
)
from tokenwire.asking.tap import Tap
from tokenwire.checks.check import Target
from tokenwire.checks.reading.bad_values import bad_values
from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Choice, Delivery, Emission, Stream
from tokenwire.scenarios.forms import with_chosen_ids
from tokenwire.scenarios.stop import characters_by_tokens, stop_across_tokens
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import WAITING_TIMEOUT, WEIGHT_UPDATES, WEIGHT_VERSIONS
from tokenwire.target.determinism import PROBE
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, PackedReads


def talk_to(
    sender: CannedSender, dialect: str = "sglang-generate", advertised: Advertised | None = None
) -> Conversation:
    return Conversation("made-up", load_dialects()[dialect], sender, advertised or Advertised(), Transcript())


def test_the_names_say_what_is_asked_and_the_probe_is_among_them() -> None:
    scenarios = load_scenarios()
    assert PROBE in scenarios
    assert all(
        name == scenario.name and name == name.lower() and " " not in name
        for name, scenario in scenarios.items()
    )
    assert all(scenario.provokes.endswith(".") for scenario in scenarios.values())


def test_a_scenario_must_say_what_it_provokes_and_have_a_name_of_its_own() -> None:
    async def silent(talk: Conversation) -> None:
        pass

    async def probe(talk: Conversation) -> None:
        """Says something."""

    with pytest.raises(ValueError, match="no docstring"):
        scenario()(silent)
    load_scenarios()
    with pytest.raises(ValueError, match="occurs twice"):
        scenario()(probe)
    assert "silent" not in SCENARIOS


def test_an_exchange_is_named_by_dialect_scenario_and_label_and_told_to_the_progress_bar() -> None:
    talk = talk_to(CannedSender(json.dumps(document(IDS, finished=True)).encode()))
    names: list[str] = []
    talk.transcript.on_answer = lambda stream: names.append(stream.exchange.name)
    stream = asyncio.run(talk.ask("label", Ask(input_ids=((1, 2),), max_new_tokens=6)))
    assert names == ["sglang-generate/made-up/label"]
    assert token_ids(stream) == tuple(IDS)
    assert text_of(stream) == "hello!"
    assert talk.transcript.streams == [stream]


def test_an_answer_is_read_with_the_dialect_of_its_endpoint() -> None:
    """A scenario of chat that sends ids to another endpoint was read as chat, and had no choice."""
    choice = {"index": 0, "token_ids": [7], "finish_reason": "length"}
    talk = talk_to(CannedSender(json.dumps({"request_id": "a", "choices": [choice]}).encode()), "vllm-chat")
    for path, dialect in (("/inference/v1/generate", "vllm-generate"), ("/elsewhere", "vllm-chat")):
        request = HttpRequest("POST", path, {"token_ids": [5], "sampling_params": {}})
        stream = asyncio.run(talk.ask(path, request))
        assert stream is not None
        assert stream.dialect == dialect
    assert token_ids(talk.transcript.streams[0]) == (7,)


def test_a_run_keeps_large_answers_packed() -> None:
    talk = talk_to(CannedSender(json.dumps(document(IDS, finished=True) | {"more": "x" * 20_000}).encode()))
    stream = asyncio.run(talk.ask("label", Ask(input_ids=((1, 2),), max_new_tokens=6)))
    assert stream is not None
    assert isinstance(stream.exchange.reads, PackedReads)
    assert json.loads(stream.exchange.body)["more"] == "x" * 20_000


def test_what_a_dialect_has_no_words_for_is_noted_and_not_sent() -> None:
    talk = talk_to(CannedSender(), "sglang-chat")
    answers = asyncio.run(talk.ask_all({"batch": Ask(input_ids=((1,), (2,))), "one": Ask(input_ids=((1,),))}))
    assert list(answers) == ["one"]
    assert "sglang-chat/made-up/batch" in talk.transcript.not_asked
    assert len(talk.transcript.streams) == 1


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("sglang-generate", {"rid": "mine"}),
        ("vllm-generate", {"request_ids": ["generate-tokens-mine"]}),
    ],
)
def test_an_abort_names_the_id_that_the_answer_carries(dialect: str, body: dict[str, object]) -> None:
    call = asyncio.run(talk_to(CannedSender(), dialect).abort("abort", "mine"))
    assert call is not None
    assert call.exchange.request.body == body


def test_budgets_fit_the_context_that_the_target_advertises() -> None:
    assert talk_to(CannedSender()).fitting(100) == 100
    small = talk_to(CannedSender(), advertised=Advertised(context_length=64))
    assert small.fitting(100) == 64 - len(PROMPT) - 8
    assert small.fitting(100, prompt_tokens=500) == 1


class Echo(CannedSender):
    """Answers like a model, so that scenarios which depend on an answer go on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.requests: dict[str, HttpRequest] = {}
        """Each request by the name of its exchange."""

    async def send(self, name: str, scenario: str, request: HttpRequest, **rest) -> Exchange:
        self.requests[name] = request
        body = request.body or {}
        params = body.get("sampling_params", body)
        params = params if isinstance(params, dict) else {}
        size = params.get("max_new_tokens", params.get("max_tokens", params.get("max_completion_tokens", 8)))
        size = size if isinstance(size, int) and size > 0 else 0
        ids = [97 + (7 * i) % 26 for i in range(size or 0)]
        prompt = body.get("input_ids")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            assert len(prompt) + (size or 0) <= 512, name
        answer = document(ids, finished=True) | {"prompt_token_ids": [1, 2, 3]}
        if "messages" in body:
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": answer["text"]},
                "finish_reason": "length",
                "response_token_ids": ids,
            }
            answer = {"choices": [choice | {"prompt_token_ids": [1, 2, 3]}]}
        if request.path.startswith("/v1/responses"):
            answer = response(message())
        self.body = json.dumps(answer).encode()
        return await super().send(name, scenario, request, **rest)


async def talk_everything_through(sender: CannedSender, *, perilous: bool) -> list[Stream]:
    """As if of a server of two ranks that has adapters, and is declared to take updates of its weights."""
    transcript = Transcript()
    advertised, declared = (
        Advertised(adapters=frozenset({"first"}), weights="/weights", dp_size=2),
        frozenset({WEIGHT_UPDATES, WEIGHT_VERSIONS, WAITING_TIMEOUT, "pause"}),
    )
    for listed in load_scenarios().values():
        for dialect in load_dialects().values():
            conversation = Conversation(
                listed.name, dialect, sender, advertised, transcript, declared=declared
            )
            if listed.chat in (None, conversation.chat) and (perilous or not listed.perilous):
                await listed.run(conversation)
    return transcript.streams


def test_ordinary_scenarios_send_nothing_that_a_server_may_die_of() -> None:
    """But what every server refuses by its type, where a refusal is what is wanted."""
    harmless = {"max_new_tokens", "max_tokens", "max_completion_tokens", "n_predict", "temperature"}
    streams = asyncio.run(talk_everything_through(Echo(), perilous=False))
    bad = {
        f"{stream.exchange.name}: {value.words}"
        for stream in streams
        for value in bad_values(stream, Target())
        if value.wire_name.rpartition(".")[2] not in harmless or not isinstance(value.value, str)
    }
    assert bad == set()
    assert any(any(bad_values(stream, Target())) for stream in streams), "a refused neighbour, for one"
    asked = {stream.exchange.name: stream.asked for stream in streams if stream.asked.constraints}
    assert asked
    assert [name for name, values in asked.items() if values.min_new_tokens] == []


def test_scenarios_ask_each_exchange_under_a_name_of_its_own_and_within_the_smallest_context() -> None:
    sender = Echo()
    asyncio.run(talk_everything_through(sender, perilous=True))
    assert len(sender.names) == len(set(sender.names))
    asked = {name.split("/")[1] for name in sender.names}
    known = {name for name, scenario in load_scenarios().items() if not scenario.parrot}
    assert asked == known - {"context-border", "cut-worker"}  # need a context length, or a worker
    for dependent in (
        "sglang-generate/continuation/after-7",
        "sglang-generate/text-prompt/its-ids",
        "sglang-generate/stop-ids/interval-3",
        "sglang-generate/unmatched-stop/begun-stream",
        "sglang-chat/chat-empty-text/stopped-at-once",
        "sglang-generate/cache-keys/first",
        "sglang-generate/adapters/none",
        "sglang-generate/flushed-cache/first",
        "sglang-generate/updated-weights/first",
    ):
        assert dependent in sender.names


# Answers that scenarios read


class HeldOpen(Echo):
    """Keeps a followed response open until another request has come."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.beside: dict[str, str] = {}
        """The open response beside each other request, by labels."""
        self._open, self._another = "", asyncio.Event()

    async def send(
        self, name: str, scenario: str, request: HttpRequest, *, tap: Tap | None = None, **rest
    ) -> Exchange:
        label = name.rpartition("/")[2]
        if tap is None:
            self.beside[label] = self._open
            self._another.set()
        else:
            self._open, self._another = label, asyncio.Event()
            tap.begin()
            tap.read(b"data: {}\n\n")
            await self._another.wait()
            tap.end()
        return await super().send(name, scenario, request, **rest)


@pytest.mark.parametrize(
    ("dialect", "chosen"),
    [
        ("vllm-completions", "logprob_token_ids"),
        ("vllm-chat", "logprob_token_ids"),
        ("sglang-generate", "token_ids_logprob"),
    ],
)
def test_candidates_are_asked_beside_more_candidates_and_beside_chosen_ids(dialect: str, chosen: str) -> None:
    sender = HeldOpen()
    talk = talk_to(sender, dialect)
    asyncio.run(load_scenarios()["candidates-beside-more"].run(talk))
    beside = {label: other for label, other in sender.beside.items() if label in ("few", "five")}
    assert beside == {"few": "more", "five": "chosen"}
    asked = {
        name.rpartition("/")[2] for name, request in sender.requests.items() if chosen in (request.body or {})
    }
    assert asked == {"chosen", "chosen-whole"}


@pytest.mark.parametrize("ids", [(40,), (40, 11, 97)])
def test_vllm_is_asked_for_as_many_top_logprobs_as_chosen_ids(ids: tuple[int, ...]) -> None:
    """The raw endpoint of vLLM refuses other numbers."""
    talk = talk_to(CannedSender(), "vllm-generate")
    ask = with_chosen_ids(talk, Ask(input_ids=((7,),), logprobs=True, top_logprobs=5), ids)
    request = talk.dialect.render(ask, "m")
    assert isinstance(request, HttpRequest)
    assert request.body is not None
    parameters = request.body["sampling_params"]
    assert (parameters["logprobs"], parameters["logprob_token_ids"]) == (len(ids), list(ids))


def test_only_what_is_there_is_read_from_an_answer() -> None:
    two = replace(ids_stream([1]), choices=ids_stream([1]).choices * 2)
    assert only_choice(None) is None
    assert only_choice(two) is None
    assert only_choice(replace(ids_stream([1]), refused=True)) is None
    assert token_ids(ids_stream([1], [2])) == (1, 2)
    assert token_ids(ids_stream([1], [True])) == ()
    assert text_of(None) == ""


def choice_of(delivery: Delivery, *pieces: str) -> Choice:
    base = ids_stream(*([[1]] * len(pieces))).choices[0]
    texts = (
        pieces if delivery is Delivery.INCREMENTAL else ["".join(pieces[: i + 1]) for i in range(len(pieces))]
    )
    emissions: tuple[Emission, ...] = tuple(
        replace(emission, text=text) for emission, text in zip(base.emissions, texts, strict=True)
    )
    return Choice(0, delivery, emissions=emissions)


@pytest.mark.parametrize("delivery", [Delivery.INCREMENTAL, Delivery.CUMULATIVE])
def test_a_stop_string_begins_in_one_token_and_ends_in_another(delivery: Delivery) -> None:
    assert stop_across_tokens(choice_of(delivery, "The ", "quick", " brown", " fox")) == "ck b"


def test_a_stop_string_occurs_nowhere_before_and_is_plain() -> None:
    incremental = Delivery.INCREMENTAL
    assert stop_across_tokens(choice_of(incremental, "abab", "abab", "xyzw", "qrst")) == "abxy"
    assert stop_across_tokens(choice_of(incremental, "aaa", "aaa", "aaa")) is None
    assert stop_across_tokens(choice_of(incremental, "ab\n", "\ncd", "\ufffd", "e")) is None
    assert stop_across_tokens(choice_of(incremental, "whole")) is None
    assert stop_across_tokens(None) is None


@given(st.lists(st.text(max_size=5), min_size=1, max_size=12))
def test_whatever_the_text_a_stop_string_is_first_met_at_a_border(pieces: list[str]) -> None:
    stop = stop_across_tokens(choice_of(Delivery.INCREMENTAL, *pieces))
    if stop is not None:
        text = "".join(pieces)
        borders = {sum(map(len, pieces[:i])) for i in range(1, len(pieces))}
        assert text.index(stop) + 2 in borders


def test_a_stop_string_of_a_text_that_repeats_is_the_last_before_the_repetition() -> None:
    later = choice_of(Delivery.INCREMENTAL, *"abcdefghijklmn")
    assert stop_across_tokens(later) == "defg", "the first in the last two thirds"
    repeats = choice_of(Delivery.INCREMENTAL, *("llqjtmrrmtjq" * 4))
    assert stop_across_tokens(repeats) == "qllq"


def test_prompts_around_the_end_of_the_context_are_asked_where_it_is_told() -> None:
    sender = CannedSender()
    dialect = load_dialects()["sglang-generate"]
    advertised = Advertised(context_length=64)
    asyncio.run(
        load_scenarios()["context-border"].run(
            Conversation("context-border", dialect, sender, advertised, Transcript())
        )
    )
    labels = {name.split("/")[2] for name in sender.names}
    assert labels == {f"{n}-{way}" for n in range(56, 66) for way in ("whole", "stream")}


def test_the_characters_of_a_choice_are_known_wherever_an_emission_ended() -> None:
    reply = Reply(ids=(1, 2, 3, 4, 5), text="abcde")
    for stream in (incremental(reply, sizes=[1, 3, 1]), cumulative(reply, sizes=[1, 3, 1])):
        assert characters_by_tokens(stream.choices[0]) == {1: 1, 4: 4, 5: 5}


@pytest.mark.parametrize(("ids", "asked"), [([], 10), (IDS, 1)])
def test_a_server_that_runs_on_without_a_budget_is_asked_that_once(ids: list[int], asked: int) -> None:
    sender = CannedSender(json.dumps(document(ids, finished=True)).encode())
    asyncio.run(load_scenarios()["no-budget"].run(replace(talk_to(sender), scenario="no-budget")))
    assert len(sender.names) == asked


def test_silence_without_a_budget_is_waited_for_once() -> None:
    sender = CannedSender(b"", status=None, ending=Ending.TIMEOUT)
    asyncio.run(load_scenarios()["no-budget"].run(replace(talk_to(sender), scenario="no-budget")))
    assert len(sender.names) == 1


@pytest.mark.parametrize(("dialect", "asked"), [("openai-responses", 0), ("sglang-chat", 6)])
def test_a_budget_of_zero_is_asked_in_a_field_that_the_endpoint_has(dialect: str, asked: int) -> None:
    """Responses knows no `max_tokens`: what ignores it answers to the end of the context."""
    sender = CannedSender(b'{"error": {"message": "max_tokens is 0"}}', status=400)
    asyncio.run(load_scenarios()["no-budget"].run(replace(talk_to(sender, dialect), scenario="no-budget")))
    assert len(sender.names) == asked
