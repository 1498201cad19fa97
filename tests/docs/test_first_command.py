"""README's first commands work on a machine with a Python and nothing else, and CI runs the same.

The Python of these tests stands for a distribution's: it has no nox, and where a test says so no `ensurepip`
and no pip. An index of one wheel stands for PyPI.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import subprocess
import sys
import threading
import types
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

NOX = "import sys\nprint('nox was asked for', *sys.argv[1:])\n"
NOXFILE_NEEDS = """
class options: pass
class Session: pass
def session(function): return function
"""
HIDE = """
import sys
import threading
import types
if not sys.prefix.endswith("nox"):
    sys.modules.update(dict.fromkeys({hidden!r}))
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    folder.mkdir()
    shutil.copy(ROOT / "noxfile.py", folder)
    return folder


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder with a wheel of a nox that only tells what it is asked for."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "nox-1-py3-none-any.whl", "w") as wheel:
        about = "nox-1.dist-info"
        wheel.writestr("nox/__init__.py", NOXFILE_NEEDS)
        wheel.writestr("nox/__main__.py", NOX)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: nox\nVersion: 1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return folder


def noxfile(clone: Path, index: Path, *arguments: str, lacks: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run the noxfile by a Python that lacks nox and some modules; the exit status, and all that was said."""
    (index / "sitecustomize.py").write_text(HIDE.format(hidden=("nox", *lacks)), "utf-8")
    from_index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PYTHONPATH": str(index)}
    ran = subprocess.run(
        [sys.executable, str(clone / "noxfile.py"), *arguments],
        env={**os.environ, **from_index},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize("lacks", [(), ("ensurepip",)], ids=["ensurepip", "pip alone"])
def test_a_python_without_nox_installs_it_beside_itself_and_goes_on(clone, index, lacks):
    asked = ("-s", "conformance", "--target", "http://127.0.0.1:30000")
    status, printed = noxfile(clone, index, *asked, lacks=lacks)
    assert status == 0, printed
    assert f"it goes into {clone / '.nox' / 'nox'}" in printed
    found = f"nox was asked for -f {clone / 'noxfile.py'} -s conformance -- --target http://127.0.0.1:30000"
    assert found in printed

    again = noxfile(clone, index, *asked, lacks=("ensurepip", "pip"))
    assert again == (0, f"{found}\n")


def test_a_python_that_can_install_nothing_is_told_what_to_install(clone, index):
    status, printed = noxfile(clone, index, "-s", "conformance", lacks=("ensurepip", "pip"))
    assert status == 1
    assert "`apt install python3-venv`" in printed
    assert "`uvx nox`" in printed
    assert not (clone / ".nox").exists()


def test_ci_runs_the_test_command_of_the_readme_and_nothing_else():
    blocks = (ROOT / "README.md").read_text("utf-8").split("```")[1::2]
    [set_up] = [block for block in blocks if "noxfile.py" in block]
    main_job, tests = (line.partition("#")[0].strip() for line in set_up.splitlines()[1:])
    assert main_job == "python3 noxfile.py -s conformance"
    assert (ROOT / ".ci" / "run").read_text("utf-8").splitlines()[-1] == tests


def test_no_page_shows_pip_for_the_python_of_the_system():
    """PEP 668: a distribution's pip refuses. Each page makes a virtual environment first."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    for page in pages:
        text = page.read_text("utf-8")
        for block in text.split("```")[1::2]:
            if "pip install" in block:
                assert "-m venv" in block, f"{page.relative_to(ROOT)}: {block}"


class Session:
    """Record the calls of a session."""

    posargs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.ran: list[tuple[str, ...]] = []
        self.logged: list[str] = []

    def install(self, *_: str, **__: object) -> None:
        """Install nothing."""

    def run(self, *command: str) -> None:
        self.ran.append(command)

    def log(self, line: str) -> None:
        self.logged.append(line)


@pytest.fixture
def sessions(monkeypatch):
    """Return the globals of the noxfile, run with a nox that has no sessions of its own."""
    nox = types.ModuleType("nox")
    exec(NOXFILE_NEEDS, nox.__dict__)
    monkeypatch.setitem(sys.modules, "nox", nox)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.setenv(name, "1")
    return runpy.run_path(str(ROOT / "noxfile.py"))


@pytest.mark.parametrize("asked", [(), ("--budget", "standard")], ids=["by default", "as asked"])
def test_the_reference_is_checked_quickly_unless_another_budget_is_asked_for(sessions, monkeypatch, asked):
    monkeypatch.setitem(
        sessions["conformance"].__globals__,
        "reference_server",
        lambda *_: contextlib.nullcontext("http://reference"),
    )
    session = Session()
    session.posargs = asked
    sessions["conformance"](session)
    one = ("tokenwire", "check", "--target", "http://reference", "--budget", "quick", *asked)
    assert session.ran == [one] * len(sessions["EMBEDDED"])


def test_a_long_installation_reports_that_it_goes_on(sessions, monkeypatch):
    waited = iter([False, False, True])
    reported = threading.Event()

    class Clock:
        def wait(self, seconds: int) -> bool:
            assert seconds == 5
            over = next(waited)
            if over:
                reported.set()
            return over

        def set(self) -> None:
            """Need not be set: the third wait ends."""

    session = Session()
    fake = types.SimpleNamespace(Event=Clock, Thread=threading.Thread)
    monkeypatch.setitem(sessions["conformance"].__globals__, "threading", fake)
    with sessions["progress"](session, "installing torch"):
        assert reported.wait(60)
    assert session.logged == ["still installing torch (5 s)", "still installing torch (10 s)"]
