"""Batches of mixed customized_info on released servers, recorded over the engine: rows name what is wrong.

Four requests start in one step: one has the key a, one the key b, one none, and one the key c from output
3 on.
"""

from pathlib import Path
from typing import Any

import pytest

from tokenwire.api import replay

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> dict[str, Any]:
    report = replay(RECORDINGS / f"mixed-batch-sglang-{request.param}.jsonl.gz")
    return {row["requirement"]: row for row in report["verdicts"] if row["verdict"] == "FAIL"}


@pytest.mark.parametrize("verdicts", ["0.5.13"], indirect=True)
def test_a_mixed_batch_kills_sglang_0_5_13(verdicts: dict[str, Any]) -> None:
    """tokenizer_manager.py takes entry i of a list that is shorter than the batch, and ends."""
    assert list(verdicts) == ["requests-do-not-break-the-server"]
    assert "the server died" in verdicts["requests-do-not-break-the-server"]["message"]


@pytest.mark.parametrize("verdicts", ["0.5.23"], indirect=True)
def test_sglang_0_5_23_shows_the_keys_of_neighbours(verdicts: dict[str, Any]) -> None:
    """output_streamer.py pads the keys of one payload for every row of it, as long as a neighbour lives."""
    assert "null for each of the 6 output ids" in verdicts["customized-info-has-a-value"]["message"]
    assert (
        verdicts["customized-info-cumulative"]["message"]
        == "b holds 4 entries for 5 output ids delivered so far"
    )
