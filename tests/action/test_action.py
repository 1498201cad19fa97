"""The action and the workflows that people copy: well-formed, and their steps do what they say."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
EXAMPLES = sorted((ROOT / "examples").glob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")


def scripts(document) -> list[str]:
    """Every script of a workflow or an action, wherever it stands."""
    if isinstance(document, dict):
        found = [value for key, value in document.items() if key == "run" and isinstance(value, str)]
        found += ["\n".join(value) for key, value in document.items() if key == "script"]
        return found + [script for value in document.values() for script in scripts(value)]
    return [script for value in document for script in scripts(value)] if isinstance(document, list) else []


EVERY_SCRIPT = [
    pytest.param(script, id=f"{name}-{position}")
    for name, document in [
        ("action", ACTION),
        *((p.stem, yaml.safe_load(p.read_text("utf-8"))) for p in (*EXAMPLES, *WORKFLOWS)),
    ]
    for position, script in enumerate(scripts(document))
]


def test_there_is_something_to_test():
    assert len(EXAMPLES) == 6
    assert len(EVERY_SCRIPT) >= 6


@pytest.mark.parametrize("script", EVERY_SCRIPT)
def test_every_script_is_bash(script):
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("script", EVERY_SCRIPT)
def test_no_expression_is_pasted_into_a_script(script):
    assert EXPRESSION.findall(script) == [], "values come through env: a pasted one is code"


def test_the_action_speaks_of_inputs_and_steps_that_it_has():
    steps = {step["id"] for step in ACTION["runs"]["steps"] if "id" in step}
    text = (ROOT / "action.yml").read_text("utf-8")
    for expression in EXPRESSION.findall(text):
        for kind, name in re.findall(r"\b(inputs|steps)\.([\w-]+)", expression):
            assert name in (ACTION["inputs"] if kind == "inputs" else steps), expression
    used = {name for item in EXPRESSION.findall(text) for name in re.findall(r"inputs\.([\w-]+)", item)}
    used |= {
        name
        for step in ACTION["runs"]["steps"]
        for name in re.findall(r"inputs\.([\w-]+)", step.get("if", ""))
    }
    assert used == set(ACTION["inputs"])


def test_every_input_and_step_says_what_it_is():
    assert all(given["description"].endswith(".") for given in ACTION["inputs"].values())
    assert all(step["name"] for step in ACTION["runs"]["steps"])
    assert all(step["shell"] == "bash" for step in ACTION["runs"]["steps"] if "run" in step)


def test_the_workflows_test_every_python_that_the_package_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {
        found[1]
        for classifier in project["classifiers"]
        if (found := re.search(r"Python :: (3\.\d+)$", classifier))
    }
    (tests,) = [yaml.safe_load(path.read_text("utf-8")) for path in WORKFLOWS if path.stem == "tests"]
    assert set(tests["jobs"]["tests"]["strategy"]["matrix"]["python"]) == named


def test_the_workflows_run_sessions_that_there_are():
    sessions = set(
        re.findall(r"^@nox\.session\ndef (\w+)", (ROOT / "noxfile.py").read_text("utf-8"), re.MULTILINE)
    )
    run = [line for path in WORKFLOWS for line in scripts(yaml.safe_load(path.read_text("utf-8")))]
    asked = {name for line in run for name in re.findall(r"noxfile\.py -s (\w+)", line)}
    assert {"lint", "tests", "docs", "browser", "audit"} <= asked <= sessions


def test_the_action_is_given_inputs_that_it_has():
    for path in (*EXAMPLES, *WORKFLOWS):
        for job in yaml.safe_load(path.read_text("utf-8")).get("jobs", {}).values():
            for step in job.get("steps", ()):
                if step.get("uses", "").split("@")[0] in {"./", "./tokenwire", "OWNER/tokenwire"}:
                    assert step["with"].keys() <= ACTION["inputs"].keys(), path


def test_a_divergence_is_reported_with_a_capture():
    forms = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in FORMS}
    assert forms.keys() == {"bug", "config", "divergence"}
    for name in ("bug", "divergence"):
        asked = [part for part in forms[name]["body"] if part["type"] != "markdown"]
        ids = [part["id"] for part in asked]
        assert len(ids) == len(set(ids))
        assert all(part["attributes"]["label"] for part in asked)
    required = {
        part["id"] for part in forms["divergence"]["body"] if part.get("validations", {}).get("required")
    }
    assert {"server", "capture", "why"} <= required


def test_the_hooks_run_what_is_installed_and_load_nothing():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert [repository["repo"] for repository in hooks["repos"]] == ["local"]
    listed = hooks["repos"][0]["hooks"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    installed = {re.split(r"[^\w-]", wanted)[0] for wanted in project["optional-dependencies"]["lint"]}
    assert {hook["entry"].split()[0] for hook in listed if hook["language"] == "system"} <= installed
    assert {hook["language"] for hook in listed} == {"system", "pygrep"}  # pygrep is a part of pre-commit


def test_a_commit_subject_has_at_most_72_characters():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]
    [hook] = [hook for hook in hooks if hook.get("stages") == ["commit-msg"]]
    is_refused = re.compile(hook["entry"], re.MULTILINE).search
    assert is_refused("x" * 73)
    assert not is_refused("x" * 72 + "\n\n" + "y" * 100)


def test_the_container_holds_all_that_is_installed_from():
    lines = (ROOT / "Containerfile").read_text("utf-8").splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    left_out = (ROOT / ".dockerignore").read_text("utf-8").split()
    assert all((ROOT / name).exists() and name not in left_out for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {name.split("/")[0] for name in (*wheel["packages"], *wheel["force-include"])}
    assert folders | {"pyproject.toml", "README.md", "LICENSE", "constraints/suite.txt"} == copied
    assert lines[-1] == 'ENTRYPOINT ["tokenwire"]'


def test_what_is_installed_is_pinned_by_hash():
    pinned = (ROOT / "constraints" / "suite.txt").read_text("utf-8")
    versions = re.findall(r"^([\w-]+)==(\S+).*\\\n    --hash=sha256:", pinned, re.MULTILINE)
    assert len(versions) == len(re.findall(r"^\w", pinned, re.MULTILINE)), (
        "each line has a version and a hash"
    )
    document = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = document["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *document["build-system"]["requires"],
        *project["dependencies"],
        *extras["parrot"],
        *extras["tokenizer"],
    ]
    for requirement in map(Requirement, wanted):
        found = [version for name, version in versions if name == requirement.name.lower()]
        assert found, f"{requirement} is not in constraints/suite.txt: run `nox -s pins`"
        assert all(requirement.specifier.contains(version) for version in found), requirement
    for path in (ROOT / "action.yml", ROOT / "Containerfile"):
        text = path.read_text("utf-8")
        assert text.count("pip install") + text.count('"${pip[@]}"') >= 2
        assert "--require-hashes" in text


def test_a_fragment_of_the_changelog_has_a_kind():
    document = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    kinds = "|".join(kind["directory"] for kind in document["tool"]["towncrier"]["type"])
    names = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    assert [name for name in names if not re.fullmatch(rf"\+[a-z0-9-]+\.({kinds})\.md", name)] == []


def test_an_entry_of_the_changelog_has_at_most_300_words():
    _, *entries = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    lengths = {entry.split()[0]: len(entry.split()) for entry in entries}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert version in lengths
    assert {name: words for name, words in lengths.items() if words > 300} == {}


def test_each_path_with_an_owner_is_there():
    lines = (ROOT / ".github" / "CODEOWNERS").read_text("utf-8").splitlines()
    owned = [line.split() for line in lines if not line.startswith("#")]
    assert owned[0][0] == "*"
    assert all((ROOT / path.strip("/")).is_dir() for path, _ in owned[1:])
    assert {owner for _, *owners in owned for owner in owners} == {"@OWNER"}


def test_actions_of_others_are_pinned_by_digest():
    files = (ROOT / "action.yml", *WORKFLOWS)
    used = [name for path in files for name in re.findall(r"uses: (\S+)", path.read_text("utf-8"))]
    others = [name for name in used if name != "./"]
    assert len(others) >= 8
    assert [name for name in others if not re.search(r"@[0-9a-f]{40}$", name)] == []


@pytest.fixture
def runner(tmp_path) -> dict[str, str]:
    """What GitHub sets for a step. The suite of this environment stands where the action would install it."""
    (tmp_path / "temp/tokenwire/bin").mkdir(parents=True)
    for name in ("python", "tokenwire"):
        program = Path(sys.executable).with_name(name)
        (tmp_path / "temp/tokenwire/bin" / name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n', "utf-8")
        (tmp_path / "temp/tokenwire/bin" / name).chmod(0o755)
    return {
        **os.environ,
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_ACTIONS": "true",
    }


def run_step(
    name: str, runner: dict[str, str], folder: Path, **given: str
) -> subprocess.CompletedProcess[str]:
    """Run one of the action's own steps as GitHub does."""
    step = next(step for step in ACTION["runs"]["steps"] if step.get("id") == name)
    inputs = {name: str(declared.get("default", "")) for name, declared in ACTION["inputs"].items()} | given
    known = {f"inputs.{name}": value for name, value in inputs.items()}
    if Path(runner["GITHUB_OUTPUT"]).exists():
        known |= {f"steps.server.outputs.{name}": value for name, value in outputs(runner).items()}
    environment = {
        name: EXPRESSION.sub(lambda match: known[match[1].strip()], value)
        for name, value in step["env"].items()
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env=runner | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def outputs(runner: dict[str, str]) -> dict[str, str]:
    lines = Path(runner["GITHUB_OUTPUT"]).read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_step_gates_a_server_that_conforms(runner, tmp_path, start_reference):
    url = start_reference()
    arguments = "--scenario greedy-stream --requirement 'one-mode-per-stream'"
    done = run_step("check", runner, tmp_path, target=url, arguments=arguments, budget="quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(runner) == {"exit-status": "0", "json": "tokenwire-report/report.json"}
    report = json.loads((tmp_path / "tokenwire-report/report.json").read_text("utf-8"))
    assert {row["requirement"] for row in report["verdicts"]} == {"one-mode-per-stream"}
    assert {file.name for file in (tmp_path / "tokenwire-report").iterdir()} == {
        "report.json",
        "report.xml",
        "report.html",
        "report.sarif",
        "badge.json",
        "exchanges",
    }
    assert "conforms" in Path(runner["GITHUB_STEP_SUMMARY"]).read_text("utf-8")


def test_the_step_fails_for_a_violation_and_says_which(runner, tmp_path, start_reference):
    url = start_reference("--enable-faults", "--sampling-backend", "mirror", "--incremental-streaming-output")
    fault = "--header 'x-tokenwire-fault: customized-info-unsliced' --scenario greedy-stream"
    done = run_step("check", runner, tmp_path, target=url, arguments=fault, record="", budget="quick")
    assert done.returncode == 1
    assert outputs(runner)["exit-status"] == "1"
    assert "::error title=FAIL customized-info-incremental::" in done.stdout
    assert not (tmp_path / "tokenwire-report/exchanges").exists()


def test_the_step_tells_an_unreachable_server_apart(runner, tmp_path):
    done = run_step("check", runner, tmp_path, target="http://127.0.0.1:1", budget="quick")
    assert done.returncode == 4
    assert outputs(runner)["exit-status"] == "4"


def test_a_parrot_is_written(runner, tmp_path):
    done = run_step("parrot", runner, tmp_path, parrot="a parrot")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"config.json", "tokenizer.json"} <= {file.name for file in (tmp_path / "a parrot").iterdir()}


def test_a_server_s_log_gives_the_runner_no_command(runner, tmp_path):
    forged = "echo '::error::forged'; exit 3"
    done = run_step("server", runner, tmp_path, server=forged, target="http://127.0.0.1:1")
    stopped = run_step("stop", {**runner}, tmp_path)
    for shown in (done.stdout, stopped.stdout):
        lines = shown.splitlines()
        begin = next(position for position, line in enumerate(lines) if line.startswith("::stop-commands::"))
        fence = lines[begin].removeprefix("::stop-commands::")
        assert len(fence) == 32
        assert begin < lines.index("::error::forged") < lines.index(f"::{fence}::")


def test_a_server_is_started_and_stopped(runner, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    target = f"http://127.0.0.1:{port}"
    # Held open by all processes of the command: what reads from it comes to an end when they have ended.
    lives = tmp_path / "lives"
    os.mkfifo(lives)
    reader = os.open(lives, os.O_RDONLY | os.O_NONBLOCK)
    command = f"exec 9> '{lives}'; '{sys.executable}' -m http.server --bind 127.0.0.1 {port}; exit"
    started = run_step("server", runner, tmp_path, server=command, target=target, ready="/", wait="60")
    assert started.returncode == 0, started.stdout + started.stderr
    with urllib.request.urlopen(target) as answer:
        assert answer.status == 200
    assert select.select([reader], [], [], 0)[0] == [], "it lives"
    stopped = run_step("stop", runner, tmp_path)
    assert stopped.returncode == 0
    assert "GET / " in stopped.stdout, "what the server wrote is shown"
    assert select.select([reader], [], [], 120)[0] == [reader], "the server goes on"
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_server_that_does_not_start_is_no_pass(runner, tmp_path):
    done = run_step(
        "server", runner, tmp_path, server="echo no such model; exit 3", target="http://127.0.0.1:1"
    )
    assert done.returncode == 4
    assert "no such model" in done.stdout
    assert "did not answer http://127.0.0.1:1/v1/models: it ended." in done.stdout
