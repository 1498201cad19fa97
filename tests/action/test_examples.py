"""Examples for other projects' tests and runners: each runs as it is, over a server in place of theirs."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from tokenwire.demo_server import demo_server

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = Path(sys.executable).parent
ASKS_LITTLE = "max-requests = 60\n"

SGLANG = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/utils.py": "def kill_process_tree(pid):\n    print('killed', pid)\n",
    "sglang/test/__init__.py": "",
    "sglang/test/ci/__init__.py": "",
    "sglang/test/ci/ci_register.py": "def register_cuda_ci(est_time, suite): pass\n",
    "sglang/test/test_utils.py": """
import os, types, unittest
DEFAULT_SMALL_MODEL_NAME_FOR_TEST, DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH = "a-small-model", 600
DEFAULT_URL_FOR_TEST = os.environ["SERVER"]
CustomTestCase = unittest.TestCase
def popen_launch_server(model, base_url, timeout):
    return types.SimpleNamespace(pid=7)
""",
}
"""Names of SGLang that its example imports: those of 0.5.23."""
VLLM = {
    "tests/__init__.py": "",
    "tests/utils.py": """
import contextlib, os, types
@contextlib.contextmanager
def RemoteOpenAIServer(model, vllm_serve_args):
    yield types.SimpleNamespace(url_root=os.environ["SERVER"])
""",
}
"""Names of vLLM's own tests that its example imports."""


def _run(
    folder: Path, command: list[str], more: Mapping[str, str], timeout_s: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, whose programs and modules come first."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(folder), str(PROGRAMS), os.environ["PATH"])),
        "PYTHONPATH": str(folder),
        **more,
    }
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _program(folder: Path, name: str, script: str) -> None:
    """Put a shell script first in the path."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    (folder / name).chmod(0o755)


def test_the_test_for_sglang_passes_with_its_server(tmp_path: Path) -> None:
    _write(tmp_path, SGLANG | {"test_wire.py": (EXAMPLES / "sglang_registered_test.py").read_text("utf-8")})
    with demo_server() as url:
        ran = _run(tmp_path, [sys.executable, "test_wire.py"], {"SERVER": url})
    assert (ran.returncode, ran.stdout) == (0, "killed 7\n"), ran.stderr


def test_the_test_for_vllm_fails_with_its_server_and_says_why(tmp_path: Path) -> None:
    _write(tmp_path, VLLM | {"test_wire.py": (EXAMPLES / "vllm_test.py").read_text("utf-8")})
    with demo_server(["prompt-tokens-grow"]) as url:
        ran = _run(
            tmp_path,
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_wire.py"],
            {"SERVER": url},
        )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "FAIL  prompt-tokens-constant" in ran.stdout


def test_the_buildkite_step_starts_checks_and_gates(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (step,) = yaml.safe_load((EXAMPLES / "buildkite.yml").read_text("utf-8"))["steps"]
    _program(tmp_path, "vllm", f'echo "$@"; exec {PROGRAMS}/tokenwire demo --serve --correct --port "$PORT"')
    _program(tmp_path, "python", 'echo "$@"')
    _program(tmp_path, "curl", f'exec {sys.executable} wait.py "$@"')
    _write(
        tmp_path,
        {
            "tokenwire.toml": ASKS_LITTLE,
            "wait.py": """
import os, socket
address = ("127.0.0.1", int(os.environ["PORT"]))
while socket.socket().connect_ex(address):
    pass
""",
        },
    )
    script = "\n".join(("trap 'kill $!' EXIT", *step["commands"]))
    ran = _run(tmp_path, ["bash", "-ec", script], {"PORT": port})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "server.log").read_text("utf-8").startswith(f"serve ./parrot --port {port}\n")
    assert (tmp_path / "parrot" / "config.json").exists()
    assert (tmp_path / "report" / "report.json").exists()


def test_the_kubernetes_job_compares_a_gateway_with_its_worker(tmp_path: Path) -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes-job.yaml").read_text("utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    _write(tmp_path, {"tokenwire.toml": ASKS_LITTLE})
    with demo_server() as gateway, demo_server() as worker:
        urls = {"http://gateway:8080": gateway, "http://worker-0.workers:8000": worker}
        arguments = [
            re.sub(r"http://\S+", lambda found: urls[found[0]], argument).replace("/results", str(tmp_path))
            for argument in container["args"]
        ]
        ran = _run(tmp_path, ["tokenwire", *arguments], {})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "report" / "report.json").exists()
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in job["spec"]["template"]["spec"]["volumes"]
    }


def test_the_container_is_run_with_the_server_s_url(tmp_path: Path) -> None:
    _write(tmp_path, {"tokenwire.toml": ASKS_LITTLE})
    _program(tmp_path, "docker", f'echo "$@" > docker.txt; shift 7; exec {PROGRAMS}/tokenwire "$@"')
    with demo_server() as url:
        ran = _run(tmp_path, [str(EXAMPLES / "docker.sh"), url], {})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    given = shlex.split((tmp_path / "docker.txt").read_text("utf-8"))
    assert given[:6] == ["run", "--rm", "--network", "host", "--volume", f"{tmp_path}:/work"]
    assert given[6].startswith("ghcr.io/")
    assert (tmp_path / "report" / "report.json").exists()
