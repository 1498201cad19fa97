"""A test for vLLM: copy it to `tests/entrypoints/openai/test_wire.py`, and install tokenwire in that job."""

import pytest
from tests.utils import RemoteOpenAIServer

from tokenwire.api import check, failures


@pytest.fixture(scope="module")
def server():
    with RemoteOpenAIServer("Qwen/Qwen3-0.6B", ["--max-model-len", "2048", "--enforce-eager"]) as server:
        yield server


def test_wire(server):
    report = check(server.url_root, budget="quick")
    assert report["exit_status"] == 0, "\n\n".join(failures(report))
