"""The hand-over between two front ends, at the stand-in for one."""

from pathlib import Path

import pytest
from proofs import hand_over
from proofs.hand_over import wanted


def handed(
    vllm_rs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    command = f"{vllm_rs} serve"
    monkeypatch.setattr("sys.argv", ["hand_over", command, command])
    return hand_over.main(), capsys.readouterr().out


def test_what_one_front_end_hands_over_reaches_the_engine_of_the_other(
    vllm_rs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, printed = handed(vllm_rs, monkeypatch, capsys)
    assert f"handed over: {{'remote_engine_id': '{hand_over.PEER}'}}" in printed
    assert status == 1, "the stand-in shows no text"
    assert "whole: script-text-is-right" in printed
    assert "streamed: script-text-is-right" in printed
    assert "received nothing" not in printed


def test_an_engine_that_receives_nothing_is_noticed(
    vllm_rs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def forgetful(url: str, handed_over: object) -> list[str]:
        return await decode(url, {})

    decode = hand_over.decode
    monkeypatch.setattr(hand_over, "decode", forgetful)
    _, printed = handed(vllm_rs, monkeypatch, capsys)
    assert printed.count("0 of 16 prompt tokens are cached: the engine received nothing from") == 2


def test_a_prefill_that_hands_nothing_over_is_noticed(
    vllm_rs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def empty(url: str) -> None:
        assert await prefill(url)

    prefill = hand_over.prefill
    monkeypatch.setattr(hand_over, "prefill", empty)
    assert handed(vllm_rs, monkeypatch, capsys) == (
        1,
        "handed over: None\nthe answer to the prefill has no kv_transfer_params\n",
    )


def test_a_front_end_of_sglang_is_refused() -> None:
    with pytest.raises(SystemExit, match="hand nothing over"):
        wanted("python -m sglang.launch_server")
