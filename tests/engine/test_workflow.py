"""The workflow that gates a front end: its own script, with a small program in the place of the fork's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

WORKFLOW = Path(__file__).parents[2] / "examples" / "github-front-end.yml"


def test_the_workflow_checks_the_front_end_of_the_fork(vllm_rs: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    steps = document["jobs"]["front-end"]["steps"]
    step = next(step for step in steps if step.get("name") == "Check the front end")
    (name,) = step["env"]
    (tmp_path / "tokenwire.toml").write_text('dialects = ["vllm-completions"]\nmax-requests = 40\n', "utf-8")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, name: f"{vllm_rs} serve"}
    done = subprocess.run(
        ["bash", "-ec", step["run"]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    report = json.loads((tmp_path / "tokenwire-report" / "report.json").read_text("utf-8"))
    verdicts = [row["verdict"] for row in report["verdicts"]]
    assert verdicts.count("PASS") > 5, done.stdout + done.stderr
    assert "FAIL" in verdicts, "the small program writes no text"
    assert done.returncode == 1
