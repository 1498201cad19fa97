"""Engines to test, and what runs them to the end. Imports torch only in fixtures: see TRITON_INTERPRET."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tokenwire_reference.core.engine import Engine
    from tokenwire_reference.core.loaded_model import LoadedModel
    from tokenwire_reference.core.request import Request
    from tokenwire_reference.extras.scripted import ScriptedModel

DEVICES = ["cpu", "cuda"]
if shutil.which("nvidia-smi") is None:
    DEVICES.remove("cuda")
    # Without a GPU, Triton's kernels run in its interpreter. Triton reads this when torch first imports it.
    os.environ["TRITON_INTERPRET"] = "1"

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    """One, or what OMP_NUM_THREADS says: small operations on several threads mostly wait for each other."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Where the engine runs: on the CPU, and on the GPU where there is one."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return str(request.param)


@pytest.fixture(scope="session")
def tiny(device: str) -> LoadedModel:
    from tokenwire_reference.loading import load_model

    return load_model("builtin:tiny", device=device)


@pytest.fixture(scope="session")
def scripted() -> ScriptedModel:
    from tokenwire_reference.extras.scripted import ScriptedModel

    return ScriptedModel()


@pytest.fixture(scope="session")
def tiny_qwen2(device: str) -> LoadedModel:
    from tokenwire_reference.loading import load_model

    return load_model(str(MODELS / "tiny-qwen2"), context_length=512, device=device)


@pytest.fixture(autouse=True)
def _no_engine_leaks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After a test, every engine that it made must account for all of its pages and requests."""
    if request.path.parent != Path(__file__).parent:
        yield
        return
    from tokenwire_reference.core.engine import Engine

    engines: list[Engine] = []
    start = Engine.__init__

    def remembered(engine: Engine, *args: Any, **options: Any) -> None:
        start(engine, *args, **options)
        engines.append(engine)

    monkeypatch.setattr(Engine, "__init__", remembered)
    yield
    for engine in engines:
        engine.check_integrity()


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
