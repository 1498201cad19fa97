"""The death of an engine in the middle of answers, at the stand-in for a front end."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from proofs import engine_death
from proofs.engine_death import findings, is_honest

from tokenwire.record import Finish
from tokenwire.wire.exchange import Ending


async def _kept(play: Any, seen: dict[str, Any], url: str, record: Path) -> object:
    answers = await play(url, record)
    seen.update(answers)
    return answers


def test_each_answer_ends_with_an_error_and_the_next_life_is_judged(
    vllm_rs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}
    for name in ("fail", "die"):
        monkeypatch.setattr(engine_death, name, partial(_kept, getattr(engine_death, name), seen))
    monkeypatch.setattr("sys.argv", ["engine_death", "--record", str(tmp_path), f"{vllm_rs} serve"])
    assert engine_death.main() == 1, "the stand-in shows no text"
    printed = capsys.readouterr().out
    assert printed.count("finish error") == 5, "three that were running, and two that failed with 500"
    assert printed.count("status 400") == 2, "this stand-in has one status for all errors with words"
    assert "started again: ('script-text-is-right'" in printed
    assert "0 of 7 answers do not show that the engine failed" in printed
    assert {path.stem for path in tmp_path.glob("*/*.jsonl")} == seen.keys()
    assert [path.stem for path in tmp_path.glob("death/*.jsonl")] == ["stream-in-which-it-dies"]
    exchange, stream = seen["stream-beside-it"]
    assert is_honest(exchange, stream)
    for ending in (Ending.TRUNCATED, Ending.TIMEOUT):
        assert not is_honest(replace(exchange, ending=ending), stream)
    (choice,) = stream.choices
    with_code = replace(choice.emissions[-1], finish=Finish("abort", code=503))
    for finish in (Finish("abort"), Finish("stop"), Finish("length")):
        emissions = (*choice.emissions[:-1], replace(choice.emissions[-1], finish=finish))
        other = replace(stream, choices=(replace(choice, emissions=emissions),))
        assert not is_honest(exchange, other), finish
    failed = replace(stream, choices=(replace(choice, emissions=(*choice.emissions[:-1], with_code)),))
    assert is_honest(exchange, failed)
    assert "finish abort with code 503" in engine_death.shown(exchange, failed)
    quiet = replace(stream, choices=())
    assert list(findings({"a stream": (exchange, quiet)})) == ["a stream: status 200, complete"]
