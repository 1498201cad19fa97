"""vLLM's protocol: recorded messages of its front ends are answered by the law, in their own form."""

import base64
import gzip
import json
import math
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tokenwire_engine.engine import EngineDiedError
from tokenwire_engine.front_end import UnknownVersionError, demand_known
from tokenwire_engine.schedule import Schedule
from tokenwire_engine.vllm import (
    ABORT,
    ADD,
    OUTPUTS,
    UTILITY,
    VllmEngine,
    VllmOptions,
)
from tokenwire_parrot.checkpoint import write_parrot

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("vllm-*.jsonl.gz"))
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


@pytest.fixture(scope="module")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("parrot")
    return folder, write_parrot(folder, with_weights=False)


class Below:
    """An engine, and what it sent, as a front end reads it."""

    def __init__(self, parrot: Any, version: str = "0.33.0", **options: Any) -> None:
        folder, law = parrot
        self.law = law
        self.sent: list[tuple[int, list[Any]]] = []
        self.engine = VllmEngine(VllmOptions("", law, folder, version, **options), self._take)
        self.fields = OUTPUTS[version]

    def _take(self, client: int, message: bytes) -> None:
        self.sent.append((client, unpack(message)))

    def ask(
        self, prompt: list[int], schedule: str | None = None, parts: tuple[bytes, ...] = (), **params: Any
    ) -> list[dict[str, Any]]:
        """The outputs for one request. parts: its large arrays."""
        params = {"max_tokens": 6, **params}
        if schedule is not None:
            params["extra_args"] = {"tokenwire": schedule}
        self.engine.receive(ADD, pack(["r", prompt, None, params, None, 0.0, None, None, None]), *parts)
        return self.run()

    def run(self) -> list[dict[str, Any]]:
        begin = len(self.sent)
        for _ in range(60):
            self.engine.step()
        rows = [row for _, message in self.sent for row in message[1]]
        assert begin <= len(self.sent)
        return [dict(zip(self.fields, row, strict=False)) for row in rows]


def numbers(packed: list[Any]) -> tuple[tuple[int, ...], list[float]]:
    """The shape and the values of an array, as serial_utils reads it."""
    kind, shape, data = packed
    letter = {"<i8": "q", "int64": "q", "<f4": "f", "float32": "f"}[kind]
    values = list(struct.unpack(f"<{len(data.data) // struct.calcsize(letter)}{letter}", data.data))
    return tuple(shape), values


PROMPT = [300 + place for place in range(16)]
"""As long as a lag: it is said again from its beginning."""


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_what_a_front_end_sent_is_answered_by_the_law(recording: Path, parrot: Any) -> None:
    below = Below(parrot, recording.name.split("-")[1])
    answered = 0
    for line in gzip.decompress(recording.read_bytes()).splitlines():
        message = json.loads(line)
        kind, payload = bytes.fromhex(message["kind"]), base64.b64decode(message["payload"])
        content = unpack(payload)
        begin = len(below.sent)
        below.engine.receive(kind, payload)
        if kind == UTILITY:
            (_, reply), *_ = below.sent[begin:]
            assert reply[4][:2] == [content[1], None]
            continue
        if kind != ADD:
            continue
        try:
            for _ in range(60):
                below.engine.step()
        except EngineDiedError:
            below = Below(parrot, recording.name.split("-")[1])
            continue
        rows = [dict(zip(below.fields, row, strict=False)) for _, m in below.sent[begin:] for row in m[1]]
        params = content[3]
        ids = [token for row in rows for token in row["new_token_ids"]]
        if (
            params.get("logit_bias")
            or params.get("structured_outputs")
            or "wait" in str(params.get("extra_args"))
        ):
            continue
        assert [row["request_id"] for row in rows] == [content[0]] * len(rows)
        assert tuple(ids) == below.law.answer(content[1], params["max_tokens"])[: len(ids)]
        assert rows[-1]["finish_reason"] is not None
        answered += 1
    assert answered


def test_recordings_are_of_every_known_release() -> None:
    assert {path.name.split("-")[1] for path in RECORDINGS} == set(OUTPUTS)


def test_an_output_ends_with_its_last_field_that_is_set(parrot: Any) -> None:
    below = Below(parrot)
    below.ask(PROMPT, "steps=4")
    first, last = (row for _, message in below.sent for row in message[1])
    assert len(first) == OUTPUTS["0.33.0"].index("num_nans_in_logits") + 1
    assert last[1] == [304, 305]
    assert last[5] == 1, "length"


def test_logprobs_are_those_of_the_law(parrot: Any) -> None:
    rows = Below(parrot).ask(PROMPT, "steps=2", logprobs=2, prompt_logprobs=1, max_tokens=4)
    law = parrot[1]
    for row in rows:
        ids, values, ranks, offsets = row["new_logprobs"]
        first, second = row["new_token_ids"]
        shape, flat = numbers(ids)
        assert shape == (2, 3)
        assert flat[:3] == [first, *(token for token, _ in law.top(first, 2))]
        assert numbers(values)[1][3] == pytest.approx(law.logprob(second, second))
        assert numbers(ranks) == ((2,), [1, 1])
        assert offsets is None
    of_prompt = rows[0]["new_prompt_logprobs_tensors"]
    assert of_prompt[0][0] == "int64"
    assert numbers(of_prompt[0])[0] == (15, 2)
    assert numbers(of_prompt[0])[1][::2] == PROMPT[1:]


def test_logprobs_of_named_ids_stand_in_their_order(parrot: Any) -> None:
    (row,) = Below(parrot).ask(PROMPT, "steps=8", logprob_token_ids=[7, 5], max_tokens=1)
    assert numbers(row["new_logprobs"][0]) == ((1, 3), [300, 7, 5])


@pytest.mark.parametrize("inline", [True, False])
def test_logprobs_of_ids_that_are_chosen_for_each_position_of_the_prompt(
    parrot: Any, *, inline: bool
) -> None:
    """A large array is a part of the message, and its place in the message is a number."""
    law, ids = parrot[1], [(7, 5), (PROMPT[3], -1)]
    content = struct.pack("<4i", *ids[0], *ids[1])
    data, parts = (msgspec.msgpack.Ext(3, content), ()) if inline else (1, (content,))
    chosen = {"prompt_logprob_token_ids": ["<i4", [2, 2], data], "prompt_logprob_start": 1}
    (row,) = Below(parrot).ask(PROMPT[:4], "steps=8", parts, max_tokens=1, **chosen)
    kind, _, _ = row["prompt_token_id_logprobs"]
    shape, values = numbers(row["prompt_token_id_logprobs"])
    due = [law.logprob(PROMPT[1], 7), law.logprob(PROMPT[1], 5), law.logprob(PROMPT[2], PROMPT[3])]
    assert (kind, shape) == ("float32", (2, 2))
    assert values == [*map(pytest.approx, due), -math.inf]


def test_an_array_of_ids_in_another_form_is_refused(parrot: Any) -> None:
    for chosen in (["<i8", [1, 1], 1], ["<i4", [1, 1], 9], 5):
        (row,) = Below(parrot).ask(PROMPT, max_tokens=1, prompt_logprob_token_ids=chosen)
        assert row["finish_reason"] == 3


def test_all_requests_of_a_step_have_as_many_candidates_as_the_widest(parrot: Any) -> None:
    """As in vLLM, whose front ends have to cut them: its Rust front end did not."""
    below = Below(parrot)
    for name, top in (("few", 1), ("none", None), ("many", 3)):
        params = {"max_tokens": 2, "logprobs": top, "extra_args": {"tokenwire": "join=3:batch;steps=2"}}
        below.engine.receive(ADD, pack([name, PROMPT, None, params, None, 0.0, None, None, None]))
    shapes = {
        row["request_id"]: row["new_logprobs"] and numbers(row["new_logprobs"][0])[0] for row in below.run()
    }
    assert shapes == {"few": (2, 4), "none": None, "many": (2, 4)}


def test_a_banned_word_does_not_come(parrot: Any) -> None:
    def ids(*words: list[int]) -> list[int]:
        rows = Below(parrot).ask(PROMPT, "steps=8", max_tokens=3, _bad_words_token_ids=list(words))
        return [token for row in rows for token in row["new_token_ids"]]

    first, second, third = ids()
    assert ids([first])[0] != first
    assert ids([second, first]) == [first, second, third]
    assert ids([first, second])[0] == first
    assert ids([first, second])[1] != second


def test_a_logprob_may_be_no_number_or_missing(parrot: Any) -> None:
    (row,) = Below(parrot).ask(PROMPT, "steps=8;logprobs=nan@1", logprobs=0, max_tokens=3)
    values = numbers(row["new_logprobs"][1])[1]
    assert list(map(math.isnan, values)) == [False, True, False]
    assert row["num_nans_in_logits"] == 1
    (row,) = Below(parrot).ask(PROMPT, "steps=8;logprobs=none@1", logprobs=0, max_tokens=3)
    assert numbers(row["new_logprobs"][0]) == ((2, 1), [300, 302])


@pytest.mark.parametrize(
    ("params", "schedule", "finish", "stop", "ids"),
    [
        ({"stop_token_ids": [303]}, "", 0, 303, 4),
        ({"_eos_token_id": 302}, "", 0, None, 3),
        ({"_eos_token_id": 302, "min_tokens": 9, "_all_stop_token_ids": [302]}, "", 1, None, 6),
        ({}, "abort=2", 2, None, 2),
        ({}, "error=2", 3, None, 2),
        ({}, "repeat=5", 4, None, 5),
    ],
)
def test_ends_are_told_as_vllm_tells_them(
    params: dict[str, Any], schedule: str, *, finish: int, stop: int | None, ids: int, parrot: Any
) -> None:
    rows = Below(parrot).ask(PROMPT, schedule, **params)
    assert (rows[-1]["finish_reason"], rows[-1].get("stop_reason")) == (finish, stop)
    assert sum(len(row["new_token_ids"]) for row in rows) == ids


def test_a_status_is_told_where_the_release_has_a_field_for_it(parrot: Any) -> None:
    rows = Below(parrot).ask(PROMPT, "error=1:503")
    assert rows[-1]["error"] == {
        "code": "internal_error",
        "message": "the schedule of the request says so",
        "retryable": True,
    }
    old = Below(parrot, "0.32.0").ask(PROMPT, "error=1:503")
    assert "error" not in old[-1]
    assert old[-1]["finish_reason"] == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra_args": {"tokenwire": "tempo=3"}}, "unknown schedule word 'tempo'"),
        ({"bad_words": ["x"]}, "does not compute bad_words without their ids"),
        ({"repetition_detection": {"min_count": 2}}, "does not compute repetition_detection"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "does not compute structural_tag"),
    ],
)
def test_what_is_not_computed_is_refused_and_named(change: dict[str, Any], words: str, parrot: Any) -> None:
    (row,) = Below(parrot).ask(PROMPT, **change)
    assert row["finish_reason"] == 3
    assert words in row["error"]["message"]
    assert row["error"]["code"] == "validation_error"


def test_a_request_that_cannot_be_computed_fails_alone(parrot: Any) -> None:
    below = Below(parrot)
    (row,) = below.ask(PROMPT, max_tokens="many")
    assert (row["finish_reason"], row["error"]["code"]) == (3, "internal_error")
    assert row["error"]["message"].startswith("TypeError: ")
    assert len(below.ask(PROMPT, "steps=6")) == 2


def test_what_else_a_schedule_says_stands_in_its_field(parrot: Any) -> None:
    below = Below(parrot)
    rows = below.ask(PROMPT, "steps=3;cached=4;drafts=2;weights=v7;kv=peer;retract=0")
    assert rows[0]["prefill_stats"]["num_cached_tokens"] == 4
    assert [event["type"] for event in rows[0]["events"]] == [1, 2, 3]
    assert rows[-1]["spec_decode_metrics"]["per_step_accepted"] == [2, 2]
    assert rows[-1]["kv_transfer_params"] == {"remote_engine_id": "peer"}
    assert {message[8] for _, message in below.sent} == {"v7"}


def test_outputs_have_the_version_that_the_weights_were_given(parrot: Any) -> None:
    below = Below(parrot)
    below.ask(PROMPT)
    assert {message[8] for _, message in below.sent} == {"default"}
    below.sent.clear()
    below.engine.receive(UTILITY, pack([0, 7, "set_weight_version", ["v2"]]))
    below.engine.receive(UTILITY, pack([0, 8, "get_weight_version", []]))
    assert [message[4] for _, message in below.sent] == [[7, None, [None, None]], [8, None, [None, "v2"]]]
    below.sent.clear()
    below.ask(PROMPT)
    assert {message[8] for _, message in below.sent} == {"v2"}


def paused(below: Below) -> Any:
    """Return the reply to the question whether the engine is paused."""
    below.engine.receive(UTILITY, pack([0, 9, "is_scheduler_paused", []]))
    return below.sent.pop()[1][4]


def test_a_pause_keeps_what_runs_and_lets_new_requests_wait(parrot: Any) -> None:
    below = Below(parrot)
    undisturbed = [token for row in below.ask(PROMPT) for token in row["new_token_ids"]]
    below.sent.clear()
    params = {"max_tokens": 6}
    below.engine.receive(ADD, pack(["runs", PROMPT, None, params, None, 0.0, None, None, None]))
    below.engine.step()
    assert paused(below) == [9, None, [None, False]]
    for _ in range(2):
        below.engine.receive(UTILITY, pack([0, 7, "pause_generation", ["keep", True]]))
        assert below.sent.pop()[1][4] == [7, None, [None, None]]
        assert paused(below) == [9, None, [None, True]]
    below.engine.receive(ADD, pack(["waits", PROMPT, None, params, None, 0.0, None, None, None]))
    rows = below.run()
    assert [row["request_id"] for row in rows] == ["runs"], "only the token from before the pause"
    assert below.engine.is_idle
    below.engine.receive(UTILITY, pack([0, 8, "resume_scheduler", []]))
    below.sent.pop()
    assert paused(below) == [9, None, [None, False]]
    rows = below.run()
    for name in ("runs", "waits"):
        ids = [token for row in rows if row["request_id"] == name for token in row["new_token_ids"]]
        assert ids == undisturbed


def test_a_pause_may_end_what_runs_and_new_requests_are_sent_away(parrot: Any) -> None:
    below = Below(parrot)
    for name, schedule in (("runs", ""), ("waits", "join=2:never")):
        params = {"max_tokens": 6, "extra_args": {"tokenwire": schedule}}
        below.engine.receive(ADD, pack([name, PROMPT, None, params, None, 0.0, None, None, None]))
    below.engine.receive(UTILITY, pack([0, 7, "pause_generation", ["abort", True]]))
    below.engine.receive(ADD, pack(["late", PROMPT, None, {}, None, 0.0, None, None, None]))
    rows = {row["request_id"]: row for row in below.run()}
    assert {name: row["finish_reason"] for name, row in rows.items()} == {"runs": 2, "waits": 2, "late": 3}
    assert rows["late"]["error"]["retryable"] is True
    assert below.engine.engine.requests == []
    below.engine.receive(UTILITY, pack([0, 8, "resume_scheduler", []]))
    below.sent.clear()
    assert below.ask(PROMPT)[-1]["finish_reason"] == 1


def test_a_pause_in_a_mode_that_is_not_computed_fails_and_pauses_nothing(parrot: Any) -> None:
    below = Below(parrot)
    below.engine.receive(UTILITY, pack([0, 7, "pause_generation", ["wait", True]]))
    assert below.sent.pop()[1][4] == [7, "this engine does not compute a pause in the mode 'wait'", None]
    assert paused(below) == [9, None, [None, False]]


@pytest.mark.parametrize(
    ("handed", "cached"), [({"remote_engine_id": "peer"}, 15), ({"do_remote_decode": True}, 0)]
)
def test_a_prompt_that_a_peer_prefilled_is_cached(handed: dict[str, Any], cached: int, parrot: Any) -> None:
    rows = Below(parrot).ask(PROMPT, extra_args={"kv_transfer_params": handed})
    assert rows[0]["prefill_stats"]["num_cached_tokens"] == cached
    assert [token for row in rows for token in row["new_token_ids"]] == PROMPT[:6]


def test_a_structured_output_is_a_word_of_its_language(parrot: Any) -> None:
    pytest.importorskip("llguidance")
    rows = Below(parrot).ask(PROMPT, structured_outputs={"regex": "[0-9]{2}x"}, max_tokens=9, _eos_token_id=0)
    from tokenwire.parrot.vocabulary import Vocabulary, words_of

    ids = [token for row in rows for token in row["new_token_ids"]]
    assert words_of(Vocabulary.BYTE_LEVEL).text(ids[:-1])[-1:] == "x"
    assert rows[-1]["finish_reason"] == 0


def test_a_client_that_aborts_is_told_nothing_and_the_next_one_is_answered(parrot: Any) -> None:
    below = Below(parrot, schedule=Schedule(wait=5))
    below.engine.receive(ADD, pack(["r", PROMPT, None, {"max_tokens": 2}, None, 0.0, None, None, None]))
    below.engine.step()
    below.engine.receive(ABORT, pack(["r", "unknown"]))
    assert below.run() == []
    assert not below.engine.engine.requests
    assert len(below.ask(PROMPT, "steps=2")) == 3


def test_outputs_go_to_the_api_server_that_asked(parrot: Any) -> None:
    below = Below(parrot)
    for name, client in (("a", 0), ("b", 1)):
        request = [name, PROMPT, None, {"max_tokens": 1}, None, 0.0, *[None] * 5, client]
        below.engine.receive(ADD, pack(request))
    below.run()
    assert [(client, message[1][0][0]) for client, message in below.sent] == [(0, "a"), (1, "b")]


def test_an_unknown_release_is_refused_with_what_differs() -> None:
    demand_known("vLLM", OUTPUTS, "0.33.0")
    with pytest.raises(UnknownVersionError) as refused:
        demand_known("vLLM", OUTPUTS, "0.99.0")
    assert str(refused.value) == (
        "vLLM 0.99.0 is unknown to this engine (known: 0.32.0, 0.33.0); "
        "--front-end-version 0.33.0 uses that protocol"
    )
    fields = (*(name for name in OUTPUTS["0.33.0"] if name != "events"), "news")
    for version in ("0.99.0", "0.33.0"):
        with pytest.raises(
            UnknownVersionError,
            match=r"compared with 0\.33\.0, its outputs add \['news'\] and lack \['events'\]",
        ):
            demand_known("vLLM", OUTPUTS, version, fields)
