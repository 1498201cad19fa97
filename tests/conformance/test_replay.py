from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from item_answers import ASKED, response
from recorded import streamed, whole, write_file, write_folder

from tokenwire.dialects.control import Action
from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Delivery
from tokenwire.replay import capture_files, replay, silent
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import Ending, HttpRequest, Read
from tokenwire.wire.json_lines import CaptureError


def test_a_recorded_folder_is_one_run(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "rec", whole("g/b"), whole("g/a"), streamed("g/c", "other"))
    subject = replay([folder])
    assert len(subject.runs) == 1
    run = subject.runs[0]
    assert [stream.exchange.name for stream in run.streams] == ["g/a", "g/b", "g/c"]
    assert {stream.exchange.scenario for stream in run.streams} == {"by-hand", "other"}
    assert subject.dialects == ("sglang-generate",)
    assert subject.captures == (str(folder),)


def test_folders_of_two_servers_are_judged_apart_and_said_to_be_two(tmp_path: Path) -> None:
    for server in ("python", "rust"):
        write_folder(tmp_path / "rec" / server, whole("g/a"), streamed("g/b"))
    subject = replay([tmp_path / "rec"])
    assert [Path(run.name).name for run in subject.runs] == ["python", "rust"]
    assert all(len(run.streams) == 2 for run in subject.runs)
    [remark] = [words for words in subject.remarks if "servers" in words]
    assert "has answers of 2 servers to the same requests" in remark
    assert f"tokenwire compare {tmp_path / 'rec' / 'python'} {tmp_path / 'rec' / 'rust'}" in remark


@pytest.mark.parametrize(
    "names", [("sglang-generate/usage/a", "sglang-chat/usage/a"), ("x/usage/a", "x/probe/a")]
)
def test_folders_of_dialects_and_scenarios_are_one_server(tmp_path: Path, names: tuple[str, str]) -> None:
    exchanges = [whole(name, scenario=name.split("/")[1]) for name in names]
    subject = replay([write_folder(tmp_path / "rec", *exchanges)])
    assert len(subject.runs) == 1
    assert not any("servers" in words for words in subject.remarks)


def test_each_file_of_many_exchanges_is_a_run_plain_or_gzipped(tmp_path: Path) -> None:
    write_file(tmp_path / "one.jsonl", whole("a"), streamed("b"))
    plain = write_file(tmp_path / "two.jsonl", whole("a"), streamed("b"))
    (tmp_path / "three.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    subject = replay([tmp_path])
    assert [Path(run.name).name for run in subject.runs] == ["one.jsonl", "three.jsonl.gz", "two.jsonl"]
    assert all(len(run.streams) == 2 for run in subject.runs)


def test_the_same_bytes_get_the_same_verdicts_in_either_form(tmp_path: Path) -> None:
    exchanges = [whole("a"), whole("b"), streamed("c", forgets_an_id=True)]
    folder = replay([write_folder(tmp_path / "rec", *exchanges)])
    file = replay([write_file(tmp_path / "one.jsonl", *exchanges)])

    def verdicts(subject) -> dict[str, Verdict]:
        return {judgement.requirement.id: judgement.verdict for judgement in judge(subject.runs)}

    assert verdicts(folder) == verdicts(file)
    assert verdicts(folder)["cumulative-ids-extend"] is Verdict.FAIL
    assert verdicts(folder)["stream-ids-equal-whole"] is Verdict.FAIL


def test_exchanges_that_no_dialect_knows_are_counted_and_named(tmp_path: Path) -> None:
    unknown = replace(whole("x"), request=HttpRequest("POST", "/v1/images?size=1", {}))
    info = replace(whole("i"), request=HttpRequest("GET", "/get_server_info"))
    subject = replay([write_file(tmp_path / "one.jsonl", whole("a"), unknown, unknown, info)])
    (remark,) = subject.remarks
    assert "2 exchanges with endpoints that are in no dialect: POST /v1/images (2)" in remark
    assert len(subject.runs[0].streams) == 1


def test_the_beginning_of_a_response_in_the_background_is_no_answer(tmp_path: Path) -> None:
    queued = json.dumps({**response(), "status": "queued"}).encode()
    asked = {"model": "m", "input": [ASKED]}
    later, plain = (
        replace(
            whole(name),
            request=HttpRequest("POST", "/v1/responses", asked | more),
            reads=(Read(0.1, queued),),
        )
        for name, more in (("later", {"background": True}), ("plain", {}))
    )
    (run,) = replay([write_file(tmp_path / "one.jsonl", later, plain)]).runs
    assert [stream.exchange.name for stream in run.streams] == ["plain"]
    assert [(call.action, call.exchange.name) for call in run.calls] == [(Action.BEGIN, "later")]


def test_what_the_server_said_of_itself_is_read_from_the_capture(tmp_path: Path) -> None:
    info = replace(
        whole("i"),
        request=HttpRequest("GET", "/server_info"),
        reads=(
            replace(whole("i").reads[0], data=b'{"stream_interval":3,"incremental_streaming_output":true}'),
        ),
    )
    run = replay([write_folder(tmp_path / "rec", info, streamed("s"))]).runs[0]
    assert run.advertised.stream_interval == 3
    assert run.advertised.delivery is Delivery.INCREMENTAL


def test_silence_is_told_by_its_reason(tmp_path: Path) -> None:
    run = replay(
        [
            write_folder(
                tmp_path / "rec",
                whole("fine"),
                replace(whole("broken"), status=503),
                replace(whole("declined"), status=400),
                replace(whole("late"), ending=Ending.TIMEOUT, status=None, reads=()),
                replace(whole("empty"), reads=()),
            )
        ]
    ).runs[0]
    found = silent(run.streams)
    assert "1 with status 503 (broken)" in found
    assert "1 with timeout (late)" in found
    assert "1 with status 200 and nothing (empty)" in found
    assert "fine" not in found
    assert "declined" not in found
    assert silent([stream for stream in run.streams if stream.answered or stream.refused]) == ""


def test_an_endpoint_that_is_not_there_was_not_asked(tmp_path: Path) -> None:
    """A run asks each of them once to know; the report of its replay named four where the run's named two."""
    absent = replace(whole("vllm-generate/preflight"), status=404)
    absent = replace(absent, request=replace(absent.request, path="/inference/v1/generate"))
    subject = replay([write_folder(tmp_path / "rec", whole("fine"), absent)])
    assert list(subject.taken) == ["sglang-generate"]
    assert subject.left_out == {"vllm-generate": "no answer has a choice; status 404"}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "does not exist; give a capture"),
        ("empty folder", "holds no file that ends in .jsonl"),
        ("empty file", "has no complete exchange; give a capture"),
        ("cut off", "has no complete exchange; give a capture"),
        ("nothing known", "is in a known dialect: 1 request to POST /nope; `tokenwire list dialects`"),
    ],
)
def test_nothing_to_replay_says_what_was_expected(tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / "captures"
    if kind in ("empty file", "cut off"):
        path.write_text('{"kind":' if kind == "cut off" else "", "utf-8")
    if kind == "empty folder":
        path.mkdir()
    elif kind == "nothing known":
        write_folder(path, replace(whole("x"), request=HttpRequest("POST", "/nope", {})))
    with pytest.raises(UsageError, match=r"captures") as raised:
        replay([path])
    assert words in str(raised.value)


def test_capture_files_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.jsonl", "deep/a.jsonl.gz", "notes.md", "c.json"):
        (tmp_path / name).write_bytes(b"")
    assert [str(path.relative_to(tmp_path)) for path in capture_files(tmp_path)] == [
        "b.jsonl",
        "deep/a.jsonl.gz",
    ]


def accused(path: Path) -> set[str]:
    """What is found wrong in a capture, by requirement and scenario."""
    accusing = {Verdict.FAIL, Verdict.WARN, Verdict.HARNESS_ERROR}
    return {judgement.name for judgement in judge(replay([path]).runs) if judgement.verdict in accusing}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.99])
def test_a_capture_that_we_left_off_accuses_of_nothing_more(tmp_path: Path, share: float) -> None:
    """A recording run that is killed leaves exchanges without an end: that is our doing, not the server's."""
    fixture = Path(__file__).parents[2] / "fixtures/tokenwire-reference/0.1.0/without-faults_cumul.jsonl.gz"
    lines = gzip.decompress(fixture.read_bytes()).splitlines(keepends=True)
    left_off = tmp_path / "left_off.jsonl"
    left_off.write_bytes(b"".join(lines[: int(share * len(lines))]))
    assert accused(left_off) - accused(fixture) == set()


def test_a_line_nested_too_deep_is_named(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text('{"kind": "request", "body": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with pytest.raises(CaptureError, match=r"deep\.jsonl, line 1: .* more than 200 deep"):
        replay([path])
