"""The death of an engine in the middle of answers, at the stand-in for a front end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proofs import engine_death
from proofs.engine_death import findings, is_honest

from tokenwire.wire.exchange import Ending


def test_each_answer_ends_with_an_error_and_the_next_life_is_judged(
    vllm_rs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}
    die = engine_death.die

    async def kept(url: str, record: Path) -> object:
        seen.update(await die(url, record))
        return seen

    monkeypatch.setattr(engine_death, "die", kept)
    monkeypatch.setattr("sys.argv", ["engine_death", "--record", str(tmp_path), f"{vllm_rs} serve"])
    assert engine_death.main() == 1, "the stand-in shows no text"
    printed = capsys.readouterr().out
    assert printed.count("finish error") == 3
    assert "started again: ('script-text-is-right'" in printed
    assert "0 of 3 answers do not tell that the engine died" in printed
    assert {path.stem for path in tmp_path.glob("*/*.jsonl")} == seen.keys()
    assert [path.stem for path in tmp_path.glob("death/*.jsonl")] == ["stream-in-which-it-dies"]
    exchange, stream = seen["stream-beside-it"]
    assert is_honest(exchange, stream)
    for ending in (Ending.TRUNCATED, Ending.TIMEOUT):
        assert not is_honest(replace(exchange, ending=ending), stream)
    quiet = replace(stream, choices=())
    assert list(findings({"a stream": (exchange, quiet)})) == ["a stream: status 200, complete"]
