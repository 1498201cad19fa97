"""What says the text of ids: a tokenizer of ours, or the server's own as far as it was asked."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_captures import live_run, verdict
from stream_builder import PROMPT, Reply, change, incremental, whole

from tokenwire.ask import Ask
from tokenwire.asking.detokenization import MOST_REQUESTS, ask_for_texts, questions
from tokenwire.dialects.detokenize import can_be_joined, joined, joined_label
from tokenwire.dialects.dialect import Unsupported, load_dialects
from tokenwire.judging.judge import judge
from tokenwire.judging.observing import NO_SCENARIO
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import ExitStatus, Verdict
from tokenwire.record import Finish, Stream
from tokenwire.replay import remarks
from tokenwire.requirement import load_requirements
from tokenwire.target.tokenizer import (
    HOW_TO_ENABLE,
    KnownVocabulary,
    LocalTokenizer,
    RemoteTokenizer,
    tokenizer_of,
    way_of,
)
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
SGLANG, VLLM = load_dialects()["sglang-generate"], load_dialects()["vllm-completions"]


@pytest.fixture(scope="module")
def qwen() -> LocalTokenizer:
    return LocalTokenizer(MODELS / "tiny-qwen2")


def test_a_tokenizer_of_ours_reads_the_models_file(qwen: LocalTokenizer) -> None:
    assert qwen.decode((1069, 587, 1648, 308)) == "The license applies to"


def test_special_tokens_are_shown_where_asked(qwen: LocalTokenizer) -> None:
    assert qwen.decode((308, 2)) == " to"
    shown = qwen.decode((308, 2), skip_special_tokens=False)
    assert shown is not None
    assert shown.startswith(" to<")


@pytest.mark.parametrize("ids", [(-1,), (10**6,), (2**70,)])
def test_ids_beyond_the_vocabulary_have_no_text(qwen: LocalTokenizer, ids: tuple[int, ...]) -> None:
    assert qwen.decode(ids) is None


def test_a_tokenizer_that_cleans_up_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((MODELS / "tiny-llama" / "tokenizer.json").read_bytes())
    assert not LocalTokenizer(tmp_path).cleans_up
    (tmp_path / "tokenizer_config.json").write_text('{"clean_up_tokenization_spaces": true}')
    assert LocalTokenizer(tmp_path).cleans_up


def test_a_folder_without_a_tokenizer_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"give the folder that contains the model's tokenizer\.json"):
        LocalTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a tokenizer"):
        LocalTokenizer(tmp_path)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"pip install tokenizers"):
        LocalTokenizer(MODELS / "tiny-qwen2")


def test_what_the_server_was_not_asked_is_not_known() -> None:
    remote = RemoteTokenizer({((1, 2), True): "ab"})
    assert remote.decode((1, 2)) == "ab"
    assert remote.decode((1, 2), skip_special_tokens=False) is None
    assert remote.decode((1,)) is None
    assert remote.decode(()) == ""


def test_special_tokens_that_are_always_spelled_out_are_skipped_where_they_are_known() -> None:
    remote = RemoteTokenizer({((1, 9, 2), False): "a<s>b", ((3,), False): "c", ((1, 2), False): "ab"})
    assert remote.decode((3,)) == "c"
    assert remote.decode((1, 9, 2)) is None
    assert remote.doubtful() == [(1,), (9,), (2,)]
    known = {((1, 9, 2), False): "a<s>b", ((1, 2), False): "ab", ((9,), False): "<s>"}
    assert RemoteTokenizer(known).decode((1, 9, 2)) == "ab"
    assert RemoteTokenizer({((4,), False): "<br>"}).decode((4,)) is None
    assert RemoteTokenizer({((4,), False): "1 < 2["}).decode((4,)) == "1 < 2["


def answered(request: HttpRequest, answer: Any, status: int = 200, name: str = "detokenize/0") -> Exchange:
    reads = (Read(0.1, json.dumps(answer).encode()),)
    headers = (("content-type", "application/json"),)
    return Exchange(name, request, "detokenize", status, headers, reads, Ending.COMPLETE)


def test_sglang_is_asked_for_many_texts_at_once_and_vllm_for_one() -> None:
    assert SGLANG.detokenize is not None
    assert VLLM.detokenize is not None
    many = SGLANG.detokenize.request([(1, 2), (3,)], skip_special_tokens=False)
    assert many.body == {"tokens": [[1, 2], [3]], "skip_special_tokens": False}
    request = VLLM.detokenize.request([(1, 2)], skip_special_tokens=False)
    assert request.body == {"tokens": [1, 2]}


def test_answers_of_either_family_are_understood() -> None:
    batch = HttpRequest("POST", "/detokenize", {"tokens": [[1], [2]], "skip_special_tokens": False})
    plain = HttpRequest("POST", "/v1/detokenize", {"tokens": [5, 6]})
    known = tokenizer_of(
        [
            answered(batch, {"text": ["a", "b"]}),
            answered(plain, {"text": "ef"}),
            answered(HttpRequest("POST", "/detokenize", {"tokens": [7]}), {"prompt": "<s>"}),
        ]
    )
    assert known is not None
    assert known.decode((2,), skip_special_tokens=False) == "b"
    assert known.decode((5, 6)) == "ef"
    assert known.decode((7,), skip_special_tokens=False) == "<s>"
    assert known.decode((7,)) == ""


@pytest.mark.parametrize("answer", [{}, [], None, {"text": [1]}, {"text": ["a", "b"]}, {"text": 5}])
def test_an_answer_that_tells_no_text_is_none(answer: Any) -> None:
    assert tokenizer_of([answered(HttpRequest("POST", "/detokenize", {"tokens": [[1]]}), answer)]) is None


def test_only_requests_for_text_are_taken_for_such() -> None:
    assert way_of(HttpRequest("POST", "/detokenize", {})) is not None
    assert way_of(HttpRequest("GET", "/detokenize")) is None
    assert way_of(HttpRequest("POST", "/tokenize", {})) is None


def test_the_checks_want_to_know_the_ids_that_were_seen_and_each_once() -> None:
    asked = questions([incremental(), incremental()], 100)
    assert len(asked) == len(set(asked))
    assert ((11, 12, 13, 14, 15, 16), True) in asked
    assert ((11, 12), True) in asked


def _long(first: int) -> Stream:
    ids = (first, *range(30, 45))
    return incremental(Reply(ids=ids, text="x" * len(ids)))


def test_of_too_many_questions_those_of_final_texts_are_asked_and_no_half_of_an_answer() -> None:
    """Without the text of a prompt, that of an answer behind it is not known."""
    answers = [_long(20 + number) for number in range(9)]
    every, some = questions(answers, 1000), questions(answers, 12)
    assert len(every) > 9 * 15
    assert 8 <= len(some) <= 12
    finals = [ids for ids, _ in some if len(ids) == 16]
    assert finals
    prompt = answers[0].asked.input_ids[0][-8:]
    assert all((prompt + ids, True) in some for ids in finals)
    assert not {skip for _, skip in questions(answers, 12, skips=False)} - {False}


class Server:
    """Answers as SGLang's `/detokenize` does, one letter for an id; or with a status."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.requests: list[HttpRequest] = []

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        del scenario, how
        self.requests.append(request)
        texts = ["".join(chr(86 + token) for token in ids) for ids in (request.body or {})["tokens"]]
        return answered(request, {"text": texts}, self.status, name)


def test_a_server_is_asked_for_the_text_of_what_it_wrote() -> None:
    server = Server()
    tokenizer = asyncio.run(ask_for_texts(server, [SGLANG], [incremental()]))
    assert tokenizer is not None
    assert tokenizer.decode((11, 12, 13, 14, 15, 16)) == "abcdef"
    assert all(len(request.body["tokens"]) <= 256 for request in server.requests)


def test_a_server_that_takes_one_list_at_a_time_is_asked_so_many_times_and_no_more() -> None:
    class OneAtATime(Server):
        async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
            del scenario, how
            self.requests.append(request)
            return answered(request, {"prompt": "<a>"}, self.status, name)

    server = OneAtATime()
    answers = [_long(20 + number) for number in range(60)]
    assert asyncio.run(ask_for_texts(server, [VLLM], answers)) is not None
    assert len(server.requests) == MOST_REQUESTS


END = 99
"""The id with which the answers end, and its text."""


class OneListAtATime(Server):
    """Answers as vLLM's `/detokenize` does, one letter for an id; the end of a sequence is spelled out."""

    drops_first = False
    """True for a tokenizer that drops the first letter of a text."""

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        del scenario, how
        self.requests.append(request)
        text = "".join(
            "</s>" if token == END else chr(86 + token) for token in (request.body or {})["tokens"]
        )
        return answered(request, {"prompt": text[self.drops_first :]}, self.status, name)


def _stopped(first: int) -> Stream:
    ids = (first, *range(30, 44), END)
    return incremental(Reply(ids=ids, text="x" * len(ids), finish=Finish("stop")))


def test_a_server_that_takes_one_list_at_a_time_is_asked_for_many_texts_in_each() -> None:
    """48 questions for 1,600 answers hid a lost end of a text in most of them."""
    server = OneListAtATime()
    answers = [_stopped(20 + number) for number in range(60)]
    wanted = questions(answers, 10_000, skips=False)
    assert len(wanted) > 10 * MOST_REQUESTS
    known = asyncio.run(ask_for_texts(server, [VLLM], answers))
    assert known is not None
    assert len(server.requests) < MOST_REQUESTS / 2
    for ids, _ in wanted:
        spelled = "".join("</s>" if token == END else chr(86 + token) for token in ids)
        assert known.decode(ids, skip_special_tokens=False) == spelled
        assert known.decode(ids) == spelled.replace("</s>", "")
    run = Run(tuple(answers), tokenizer=known)
    assert run.texts_not_asked == (0, 60)


def test_a_tail_that_vllm_never_shows_is_seen_by_what_it_says_itself() -> None:
    """The row said that no ids ended within a character, of texts that nobody had asked for."""
    run = live_run("vllm-tail-missed")
    assert run.model is not None
    vocabulary = KnownVocabulary(run.model.words)

    class Vllm(Server):
        async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
            del scenario, how
            ids = (request.body or {})["tokens"]
            return answered(request, {"prompt": vocabulary.decode(ids, skip_special_tokens=False)}, name=name)

    known = asyncio.run(ask_for_texts(Vllm(), [VLLM], [answer.load() for answer in run.streams]))
    assert known is not None
    assert verdict(replace(run, tokenizer=known), "incomplete-tail-is-shown") is Verdict.WARN


def test_joined_lists_whose_texts_are_others_than_alone_are_not_believed() -> None:
    server = OneListAtATime()
    server.drops_first = True
    answers = [_stopped(20 + number) for number in range(60)]
    known = asyncio.run(ask_for_texts(server, [VLLM], answers))
    assert known is not None
    assert len(server.requests) <= MOST_REQUESTS
    run = Run(tuple(answers), tokenizer=known)
    not_asked, texts = run.texts_not_asked
    assert 0 < not_asked <= texts == 60
    assert f"{not_asked} of 60 texts were not compared with their ids" in "; ".join(remarks(run))
    rows = [row for row in BY_TOKENIZER if row.id == "incomplete-tail-is-shown"]
    (judged,) = judge([run], rows)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert f"{not_asked} of 60 texts are unknown, as the server was not asked for them" in judged.message
    assert "--tokenizer" in judged.message


@pytest.mark.parametrize("model", ["tiny-qwen2", "tiny-llama"])
@given(
    lists=st.lists(st.lists(st.integers(0, 700), min_size=1, max_size=12).map(tuple), min_size=1, max_size=9)
)
def test_what_is_joined_is_taken_apart_as_it_was(model: str, lists: list[tuple[int, ...]]) -> None:
    tokenizer, divider = LocalTokenizer(MODELS / model), 2
    lists = [ids for ids in lists if can_be_joined(ids, divider)]
    ids = joined(lists, divider)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert VLLM.detokenize is not None
    request = VLLM.detokenize.request([ids], skip_special_tokens=False)
    exchange = answered(request, {"prompt": text}, name=f"detokenize/{joined_label('vllm', divider, 3)}")
    assert VLLM.detokenize.texts(exchange) == {}
    assert VLLM.detokenize.joined_texts(exchange) == {
        (ids, False): tokenizer.decode(ids, skip_special_tokens=False) for ids in lists
    }


def test_a_server_without_the_endpoint_is_asked_once() -> None:
    server = Server(404)
    assert asyncio.run(ask_for_texts(server, [SGLANG], [incremental()])) is None
    assert len(server.requests) == 1
    assert asyncio.run(ask_for_texts(server, [load_dialects()["openai-chat"]], [incremental()])) is None
    assert len(server.requests) == 1


BY_TOKENIZER = [row for row in load_requirements().values() if row.oracle == "tokenizer"]


def test_without_a_tokenizer_nothing_is_said_but_how_to_get_one() -> None:
    run = Run((incremental(stream=True),))
    judged = judge([run], [row for row in BY_TOKENIZER if row.id == "text-is-what-its-ids-say"])
    assert [(judgement.verdict, judgement.scenario) for judgement in judged] == [
        (Verdict.NOT_TESTABLE, NO_SCENARIO)
    ]
    assert judged[0].message == HOW_TO_ENABLE


def test_with_a_tokenizer_a_wrong_text_is_found_within_one_answer() -> None:
    ids = (11, 12, 13, 14, 15, 16)
    texts = {ids: "abcdef", PROMPT: "Say", (*PROMPT, *ids): "Say abcdef"}
    remote = RemoteTokenizer({(asked, True): text for asked, text in texts.items()})
    wrong = change(whole(Reply()), text="abcde")
    rows = [row for row in BY_TOKENIZER if row.id == "text-is-what-its-ids-say"]
    verdicts = [judgement.verdict for judgement in judge([Run((wrong,), tokenizer=remote)], rows)]
    assert verdicts == [Verdict.FAIL]
    alone = RemoteTokenizer({(ids, True): "abcdef"})
    (unknown,) = judge([Run((wrong,), tokenizer=alone)], rows)
    assert unknown.verdict is Verdict.INCONCLUSIVE  # behind its prompt, the text may begin otherwise


def test_a_recording_is_judged_by_the_tokenizer_of_its_model(tokenwire) -> None:
    capture = MODELS.parent / "vllm" / "0.32.0-cpu" / "si3.jsonl.gz"
    replay = ("replay", str(capture), "--requirement", "text-is-what-its-ids-say", "--tokenizer")
    assert tokenwire(*replay, str(MODELS / "tiny-llama")).returncode == ExitStatus.CONFORMS
    assert tokenwire(*replay, str(MODELS / "tiny-qwen2")).returncode == ExitStatus.VIOLATION
    ran = tokenwire(*replay, str(MODELS))
    assert ran.returncode == ExitStatus.USAGE
    assert "there is no" in ran.stderr


def test_a_bias_of_ids_is_said_where_the_endpoint_takes_it() -> None:
    ask = Ask(input_ids=((1, 2),), logit_bias={7: 100.0})
    requests = {name: dialect.render(ask) for name, dialect in load_dialects().items()}
    native, completions = requests["sglang-generate"], requests["sglang-completions"]
    assert isinstance(native, HttpRequest)
    assert isinstance(completions, HttpRequest)
    assert native.body is not None
    assert native.body["sampling_params"]["logit_bias"] == {"7": 100.0}
    assert completions.body is not None
    assert completions.body["logit_bias"] == {"7": 100.0}
    # It shapes the tokens, so the answer is another than without it.
    assert SGLANG.read_asked(native).other_sampling
    assert isinstance(requests["lmdeploy-generate"], Unsupported)
