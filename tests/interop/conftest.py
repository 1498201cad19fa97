"""Other people's programs against ours: `nox -s interop`, or `pytest tests/interop` where they are installed.

They come from the package index and are large, so this folder is collected only by a run that names it. All
of it stays on the loopback interface, and nothing is downloaded while it runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from suite_report import Report

if TYPE_CHECKING:
    from openai import OpenAI

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder to runs that name it, or something in it."""
    folder = config.invocation_params.dir
    named = ((folder / argument.partition("::")[0]).resolve() for argument in config.args)
    return None if any(path.is_relative_to(HERE) for path in named) else True


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Report]:
    """Give `check(url, *options)`: run the suite against a URL as a user would, and read its report."""

    def check(url: str, *options: str) -> Report:
        folder = tmp_path_factory.mktemp("check")
        report = folder / "report.json"
        command = [sys.executable, "-m", "tokenwire", "check", "--target", url, "--json", str(report)]
        command += ["--timeout", "300"]  # a machine with much to do is no fault of these servers
        ran = subprocess.run(
            [*command, "-q", *options], cwd=folder, capture_output=True, text=True, check=False
        )
        assert report.exists(), ran.stdout + ran.stderr
        return Report(json.loads(report.read_text("utf-8")))

    return check


@pytest.fixture(scope="session")
def reference_url(start_reference: Callable[..., str]) -> str:
    """A reference engine with its own tiny model."""
    return start_reference()


@pytest.fixture(scope="session")
def client(reference_url: str) -> OpenAI:
    """The public client, as its documentation makes it, with the reference as its server."""
    from openai import OpenAI  # not installed where this folder is left out

    return OpenAI(base_url=f"{reference_url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def model(client: OpenAI) -> str:
    """The one model that the reference lists."""
    (model,) = client.models.list()
    return model.id
