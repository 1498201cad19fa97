"""Engines to test, and what runs them to the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenwire_reference.engine import Engine
from tokenwire_reference.model import LoadedModel, load_model
from tokenwire_reference.request import Request

torch.set_num_threads(1)

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    return load_model("builtin:tiny")


@pytest.fixture(scope="session")
def tiny_qwen2() -> LoadedModel:
    return load_model(str(MODELS / "tiny-qwen2"), context_length=512)


@pytest.fixture
def run_to_end() -> Callable[..., list[Request]]:
    """Add requests, step until the engine is idle, check that nothing leaked; give the requests back."""

    def run(engine: Engine, *requests: Request) -> list[Request]:
        for request in requests:
            engine.add(request)
        while not engine.idle:
            engine.step()
        engine.check_integrity()
        return list(requests)

    return run
