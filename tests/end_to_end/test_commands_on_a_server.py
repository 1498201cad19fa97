"""The commands that need a server, against the reference engine."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

KEY = "a-key-that-nobody-may-see"


def test_from_init_to_a_recording_without_a_key_in_it(
    tokenwire, start_reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = start_reference()
    monkeypatch.setenv("TENANT", KEY)
    init = tokenwire("init", "--target", url, "--header", "X-Tenant: env:TENANT")
    assert init.returncode == 0, init.stdout + init.stderr
    text = (tmp_path / "tokenwire.toml").read_text("utf-8")
    settings = tomllib.loads(text)
    assert settings["target"] == url
    assert settings["headers"] == {"X-Tenant": "env:TENANT"}
    assert '# dialects = ["' in text
    assert "sglang-generate" in text
    record = tokenwire("record", "rec", "--scenario", "probe", "-v")
    assert record.returncode == 0, record.stdout + record.stderr
    assert "exchanges are in rec" in record.stdout
    lines = record.stderr.splitlines()
    assert any(" POST /generate {" in line and " -> 200 complete, " in line for line in lines)
    files = list((tmp_path / "rec").rglob("*.jsonl"))
    recorded = "".join(file.read_text("utf-8") for file in files)
    assert len(files) <= len(lines)
    assert "X-Tenant" in recorded
    assert KEY not in recorded + record.stdout + record.stderr + text
    replay = tokenwire("replay", "rec", "-q")
    assert replay.returncode == 0, replay.stdout + replay.stderr


def test_somebody_elses_pytest_judges_a_server_by_markers(start_reference, tmp_path: Path) -> None:
    url = start_reference()
    (tmp_path / "conftest.py").write_text(
        "def pytest_collection_modifyitems(items):\n    print('theirs saw', bool(items))\n", "utf-8"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n", "utf-8")
    (tmp_path / "tokenwire.toml").write_text('dialects = ["sglang-generate"]\n', "utf-8")
    (tmp_path / "test_theirs.py").write_text("def test_theirs(): assert False\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tokenwire", "-p", "no:cacheprovider", "-v", "-s"]
    command += ["--tokenwire-target", url, "--tokenwire-budget", "quick"]
    marked = "chapter(name='framing') and level(name='MUST')"
    # Other plugins that happen to be installed here are slow to start.
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        [*command, "-m", marked],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=alone,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "theirs saw True" in ran.stdout
    assert "done-ends-the-stream[" in ran.stdout
    assert "cumulative-ids-extend" not in ran.stdout
    assert "test_theirs" not in ran.stdout
