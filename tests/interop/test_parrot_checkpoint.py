"""Engines that are installed load a parrot, and end its answers where its law says.

transformers comes with the session; `vllm` and `llama-server` are asked where they are on the path.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from programs import answers, free_port, program

from tokenwire.ask import Asked
from tokenwire.parrot.encoding import chat_text, encoder
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.script import truth
from tokenwire.parrot.vocabulary import LESSON, Vocabulary, words_of
from tokenwire_parrot.checkpoint import write_parrot

_SMALL = ("--max-num-seqs", "4", "--dtype", "float32", "--enforce-eager")
COMMANDS: dict[str, Callable[[Path, str], list[str]]] = {
    "transformers": lambda model, port: ["serve", str(model), "--device", "cpu", "--port", port],
    "vllm": lambda model, port: ["serve", str(model), "--port", port, "--max-model-len", "2048", *_SMALL],
    "llama-server": lambda model, port: ["--model", str(model / "parrot.gguf"), "--port", port],
}
"""The arguments of each program that serves a model."""
MESSAGES = [{"role": "user", "content": LESSON.partition("<tool_call>")[0]}]


@pytest.fixture(scope="module", params=[name for name in COMMANDS if shutil.which(name)])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Give `served(body)`: the answer of an engine to a chat."""
    model, home, port = tmp_path_factory.mktemp("parrot"), tmp_path_factory.mktemp("home"), str(free_port())
    write_parrot(model, gguf=True)
    with program([request.param, *COMMANDS[request.param](model, port)], home) as running:
        url = f"http://127.0.0.1:{port}"
        running.until(answers(f"{url}/health"))

        def ask(budget: int) -> dict[str, Any]:
            body = {"model": str(model), "messages": MESSAGES, "temperature": 0.0, "max_tokens": budget}
            document = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=240.0).json()
            assert "choices" in document, document
            return dict(document)

        yield ask


@pytest.mark.parametrize(("budget", "finish"), [(20, "length"), (600, "stop")])
def test_an_answer_ends_where_the_law_says(served: Any, budget: int, finish: str) -> None:
    words, encode = words_of(Vocabulary.BYTE_LEVEL), encoder(Vocabulary.BYTE_LEVEL)
    prompt = encode(chat_text(MESSAGES) or "")
    right = truth(Parrot(len(words.pieces)), words, prompt, Asked(greedy=True, max_new_tokens=budget))
    assert right is not None
    assert right.finish == finish
    document = served(budget)
    assert document["choices"][0]["finish_reason"] == finish
    uncounted = finish == "stop" and document["usage"]["completion_tokens"] == len(right.ids) - 1
    assert uncounted or document["usage"]["completion_tokens"] == len(right.ids), "an end is counted or not"
