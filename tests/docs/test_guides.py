"""What people type after the guides: the options are there, the files parse, the names are known."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main
import yaml

from tokenwire.baselines.baseline import parse_baseline
from tokenwire.cli import app
from tokenwire.config import KEYS, value_of
from tokenwire.profile import load_profiles
from tokenwire.requirement import load_requirements
from tokenwire.target.capability import known_capabilities

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = DOCS.parent / "README.md"
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(*kinds: str) -> list[tuple[str, str]]:
    return [
        (page.name, match["text"])
        for page in (*PAGES, README)
        for match in BLOCK.finditer(page.read_text("utf-8"))
        if match["kind"] in kinds
    ]


def typed() -> list[str]:
    """Every command line that begins with `tokenwire`, with its continuation lines."""
    lines = [
        line.removeprefix("$ ").strip()
        for _, text in blocks("sh", "console")
        for line in text.replace("\\\n", " ").splitlines()
    ]
    return list(dict.fromkeys(line for line in lines if line.startswith("tokenwire ")))


@pytest.mark.parametrize("line", typed())
def test_every_command_line_can_be_parsed(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no settings of ours
    monkeypatch.setenv("MY_KEY", "secret")
    command = typer.main.get_command(app)
    name, words = "tokenwire", shlex.split(line.partition(" # ")[0])[1:]
    while getattr(command, "commands", None):
        context = command.make_context(name, [], resilient_parsing=True)
        name, command, words = command.resolve_command(context, words)
    if name in {"check", "record"} and not {"--target", "--engine"}.intersection(words):
        words += ["--target", "http://127.0.0.1:1"]
    context = command.make_context(name, words)
    known = {"requirement": load_requirements(), "profile": load_profiles()}
    for option, names in known.items():
        given = context.params.get(option) or ()
        assert {item for item in ([given] if isinstance(given, str) else given) if item != "ID"} <= set(names)


def test_there_are_command_lines():
    assert len(typed()) > 15


def test_no_loop_of_a_guide_is_without_an_end():
    """`until curl …/v1/models` waited for ever for a server that lists no model."""
    scripts = [text for _, text in blocks("sh", "console")]
    scripts += [path.read_text("utf-8") for path in (DOCS.parent / "examples").glob("*.yml")]
    assert [text for text in scripts if re.search(r"^\s*(until|while) .*do\b", text, re.MULTILINE)] == []


def test_the_readme_counts_no_more_defects_than_there_are():
    [found] = re.findall(r"more than (\d+) defects", README.read_text("utf-8"))
    defects = yaml.safe_load((DOCS.parent / "fixtures" / "defects.yaml").read_text("utf-8"))
    assert len(defects) > int(found)


def test_settings_in_the_guides_are_settings():
    files = [tomllib.loads(text) for _, text in blocks("toml")]
    settings = [file for file in files if "target" in file]
    assert settings
    for setting in settings:
        assert set(setting) <= set(KEYS)
        assert all(value_of(KEYS[key])[1](value) for key, value in setting.items())
        assert set(setting["capabilities"]) <= set(known_capabilities())
        assert set(setting["profiles"]) <= set(load_profiles())


def test_known_failures_in_the_guides_are_written_as_baselines_are(tmp_path):
    [text] = [text for _, text in blocks("toml") if "[[failure]]" in text]
    entries = parse_baseline(tmp_path / "baseline.toml", text).entries
    assert [(entry.requirement, entry.scenario, entry.seen_in) for entry in entries] == [
        ("customized-info-incremental", "", 12)
    ]
    assert entries[0].reason
    assert entries[0].expires is not None


def test_the_markers_of_the_guide_select_items(tmp_path):
    """The command of the guide, on a capture."""
    [line] = [line for _, text in blocks("sh") for line in text.splitlines() if "--tokenwire-target" in line]
    words = shlex.split(line)
    place = words.index("--tokenwire-target")
    capture = DOCS.parent / "fixtures" / "sglang" / "0.5.23" / "Q_queue.jsonl.gz"
    words[place : place + 2] = ["--tokenwire-capture", str(capture)]
    run = [sys.executable, *words[1:], "-p", "no:cacheprovider"]
    # Other plugins that happen to be installed here are slow to start.
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* passed.*[1-9]\d* deselected", done.stdout)


def test_the_guides_show_the_workflows_that_are_tested():
    included = {line for _, text in blocks("yaml") for line in text.splitlines() if line.startswith("--8<--")}
    names = {line.split('"')[1] for line in included}
    shown = {path.name for path in (DOCS.parent / "examples").iterdir() if path.suffix in {".yml", ".yaml"}}
    assert names == {f"examples/{name}" for name in shown}


def test_the_action_has_the_inputs_that_the_guide_tells():
    guide = (DOCS / "guides" / "gate-a-fork.md").read_text("utf-8")
    found = dict(re.findall(r"^\| `([\w-]+)` \| .+ \| (.*?) ?\|$", guide, re.MULTILINE))
    inputs = yaml.safe_load((DOCS.parent / "action.yml").read_text("utf-8"))["inputs"]
    assert list(found) == list(inputs)
    for name, given in inputs.items():
        assert found[name].strip("`") == ("required" if given.get("required") else given["default"]), name


def test_every_page_is_in_the_navigation():
    text = (DOCS.parent / "mkdocs.yml").read_text("utf-8")
    assert [p for p in PAGES if p.relative_to(DOCS).as_posix() not in text] == []
