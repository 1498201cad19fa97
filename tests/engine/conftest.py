"""A program that is started as vLLM's Rust front end is."""

import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def vllm_rs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake front end, under the name of the real one."""
    program = tmp_path_factory.mktemp("bin") / "vllm-rs"
    source = Path(__file__).with_name("fake_front_end.py").read_text("utf-8")
    program.write_text(f"#!{sys.executable}\n{source}", "utf-8")
    program.chmod(0o755)
    return program
