"""A dialect of one's own: a file that is named, or a package that brings dialects, rows and checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import streamed, write_folder
from recorded import whole as recorded_whole

from tokenwire.demo_server import demo_server
from tokenwire.spec_files import spec_root

SPEC = spec_root()
RECORDED = (recorded_whole("w1"), streamed("s1"))


def mine(folder: Path, *, name: str = "mine", replaced: tuple[str, str] = ("", "")) -> Path:
    """The nearest dialect, copied as the guide says, with a schema of its own."""
    text = (SPEC / "dialects" / "sglang-generate.yaml").read_text("utf-8")
    text = text.replace("name: sglang-generate", f"name: {name}").replace(*replaced)
    text = text.replace("generate-response", "my-response")
    (folder / "schemas").mkdir(parents=True, exist_ok=True)
    schema = (SPEC / "schemas" / "generate-response.json").read_text("utf-8")
    (folder / "schemas" / "my-response.json").write_text(schema, "utf-8")
    (folder / f"{name}.yaml").write_text(text, "utf-8")
    return folder / f"{name}.yaml"


@pytest.mark.parametrize("by_file", [False, True], ids=["option", "tokenwire.toml"])
def test_a_server_is_asked_in_the_dialect_of_a_file(tokenwire, tmp_path: Path, by_file: bool) -> None:
    mine(tmp_path)
    if by_file:
        (tmp_path / "tokenwire.toml").write_text('dialects = ["./mine.yaml"]\n', "utf-8")
    given = ("--trust",) if by_file else ("--dialect", "mine.yaml")
    with demo_server(["prompt-tokens-grow"]) as url:
        only = ("--scenario", "request-id", "--budget", "quick", "--json", "r.json")
        ran = tokenwire("check", "-q", "--target", url, *given, *only)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "FAIL  prompt-tokens-constant  in request-id" in ran.stdout
    assert "--dialect mine.yaml" in ran.stdout or by_file
    report = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert report["target"]["dialects"] == ["mine"]


@pytest.mark.parametrize(
    ("replaced", "words"),
    [
        (("zero_budget: answered", "zero_budgets: answered"), "zero_budgets"),
        (("name: mine", "name: vllm-chat"), "the name 'vllm-chat' is taken by another dialect"),
        (("generate-event", "no-event"), "no-event.json is missing"),
        (("endpoint:", "endpoints:"), "'endpoint' is missing"),
    ],
    ids=["policy", "name", "schema", "key"],
)
def test_a_file_is_held_to_what_our_own_are(tokenwire, tmp_path: Path, replaced, words) -> None:
    path = mine(tmp_path, replaced=replaced)
    ran = tokenwire("check", "--target", "http://127.0.0.1:9", "--dialect", str(path))
    assert ran.returncode == 2, ran.stdout
    output = " ".join(ran.stderr.replace("│", " ").split())
    assert words in output


def test_a_capture_is_read_by_a_dialect_of_a_file(tokenwire, tmp_path: Path) -> None:
    path = mine(tmp_path, replaced=("path: /generate", "path: /mine"))
    write_folder(tmp_path / "rec", recorded_whole("w1"))
    for capture in (tmp_path / "rec").rglob("*.jsonl*"):
        capture.write_text(capture.read_text("utf-8").replace("/generate", "/mine"), "utf-8")
    without = tokenwire("replay", "rec", "-v")
    ran = tokenwire("replay", "rec", "-v", "--dialect", str(path))
    assert "asked: mine" not in without.stdout
    assert "asked: mine" in ran.stdout, ran.stdout + ran.stderr


def unseen(tokenwire, folder: Path, dialect: str) -> str:
    """The remark on pointers that no answer of a recording has."""
    tokenwire("replay", "rec", "--dialect", dialect, "--json", "r.json")
    report = json.loads((folder / "r.json").read_text("utf-8"))
    remarks = report["target"]["remarks"]
    return "".join(remark for remark in remarks if "in none of its answers" in remark)


@pytest.mark.parametrize(
    ("field", "pointer", "wrong"),
    [
        ("output_ids", "/output_ids", "/tokenz"),
        ("completion_tokens", "/meta_info/completion_tokens", "/about/mad"),
    ],
)
def test_a_pointer_that_no_answer_has_is_a_remark(tokenwire, tmp_path: Path, field, pointer, wrong) -> None:
    path = mine(tmp_path, replaced=("path: /generate", "path: /mine"))
    written = path.read_text("utf-8")
    answers = [replace(one, request=replace(one.request, path="/mine")) for one in RECORDED]
    write_folder(tmp_path / "rec", *answers)
    assert f" of {field} (" not in unseen(tokenwire, tmp_path, "mine.yaml")
    assert f"{field}: {pointer}\n" in written
    path.write_text(written.replace(f"{field}: {pointer}\n", f"{field}: {wrong}\n"), "utf-8")
    remark = unseen(tokenwire, tmp_path, "mine.yaml")
    assert f"{wrong} of {field} ({len(answers)})" in remark
    assert " of text (" not in remark


def test_a_pointer_of_our_own_dialects_that_no_answer_has_is_no_remark(tokenwire, tmp_path: Path) -> None:
    write_folder(tmp_path / "rec", *RECORDED)
    assert unseen(tokenwire, tmp_path, "sglang-generate") == ""


@pytest.mark.parametrize("copied", [False, True])
def test_a_failure_says_whose_schema_refused_it(tokenwire, tmp_path: Path, copied: bool) -> None:
    """A field is renamed in the file and, where its schema is copied, in the schema."""
    path = mine(tmp_path, replaced=("path: /generate", "path: /mine"))
    path.write_text(path.read_text("utf-8").replace("/output_ids", "/ids"), "utf-8")
    if copied:
        schema = (SPEC / "schemas" / "generate-event.json").read_text("utf-8")
        written = tmp_path / "schemas" / "generate-event.json"
        written.write_text(schema.replace('"output_ids"', '"ids"'), "utf-8")
    recorded = streamed("s1")
    reads = tuple(replace(read, data=read.data.replace(b"output_ids", b"ids")) for read in recorded.reads)
    request = replace(recorded.request, path="/mine")
    write_folder(tmp_path / "rec", replace(recorded, reads=reads, request=request))
    ran = tokenwire("replay", "rec", "--dialect", str(path), "--requirement", "events-fit-schema")
    words = " ".join(ran.stdout.split())
    whose = "by the schema generate-event of Tokenwire; copy it to schemas/generate-event.json and adapt it"
    assert (f'"output_ids" is a required property ({whose})' in words) is not copied, ran.stdout
    assert ("FAIL  events-fit-schema" in ran.stdout) is not copied


CHECK = '''
from tokenwire.checks.check import check
from tokenwire.checks.evidence import expect


@check("mine-says-hello")
def mine_says_hello(stream, _target):
    """Every whole answer says hello."""
    for choice in stream.choices:
        yield expect(choice.last_at("text"), "hello", choice.text, "it says something else")
'''
ROWS = """\
chapter: mine
profile: core
requirements:
  - id: mine-says-hello
    level: MUST
    sentence: An answer MUST say hello.
    contract: blackbox
    oracle: within-response
    witnesses: 1
    basis: [tokenwire]
    breaks: who is not greeted
"""


def test_a_package_brings_dialects_rows_and_checks(tmp_path: Path) -> None:
    package = tmp_path / "site" / "my_family"
    mine(package / "spec" / "dialects")
    (package / "spec" / "dialects" / "schemas").rename(package / "spec" / "schemas")
    (package / "spec" / "requirements").mkdir()
    (package / "spec" / "requirements" / "mine.yaml").write_text(ROWS, "utf-8")
    (package / "__init__.py").write_text(CHECK, "utf-8")
    about = tmp_path / "site" / "my_family-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-family\nVersion: 1\n", "utf-8")
    (about / "entry_points.txt").write_text("[tokenwire.extensions]\nmine = my_family\n", "utf-8")
    write_folder(tmp_path / "rec", recorded_whole("w1"))
    paths = os.pathsep.join([str(tmp_path / "site"), *sys.path])

    def tokenwire(*words: str) -> str:
        command = [sys.executable, "-m", "tokenwire", *words]
        environment = {**os.environ, "PYTHONPATH": paths}
        ran = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
        )
        return ran.stdout + ran.stderr

    assert "mine " in tokenwire("list", "dialects")
    assert "An answer MUST say hello." in tokenwire("explain", "mine-says-hello")
    assert "FAIL  mine-says-hello  in " in tokenwire("replay", "rec", "--requirement", "mine-says-hello")
