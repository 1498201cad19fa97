"""The sessions of Tokenwire: `conformance` checks a server; `ci` checks Tokenwire, the others more of it.

python3 noxfile.py -s conformance                      the reference engine, started and stopped for you
python3 noxfile.py -s conformance --target http://…    any server
nox -s conformance -- --target http://…                the same, where nox is installed

Run by a Python without nox, this file installs nox into .nox/nox, and goes on with that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path


def _run_with_own_nox() -> int | str:
    """Run this command again with the nox of a virtual environment, made where it is missing.

    A distribution's Python takes no packages (PEP 668), and may lack `ensurepip` or pip. Gives the
    exit status, or why there is no nox.
    """
    home = Path(__file__).parent / ".nox" / "nox"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists() or subprocess.call([python, "-c", "import nox"], stderr=subprocess.DEVNULL):
        print(f"nox is not installed for {sys.executable}: it goes into {home}", flush=True)
        has_ensurepip = find_spec("ensurepip") is not None
        if not has_ensurepip and find_spec("pip") is None:
            return (
                f"{sys.executable} has neither ensurepip nor pip, and cannot install nox: on Debian and"
                " Ubuntu, `apt install python3-venv` first. `uvx nox` and `pipx run nox` need neither."
            )
        venv.create(home, with_pip=has_ensurepip, symlinks=os.name != "nt")
        pip = [python, "-m", "pip"] if has_ensurepip else [sys.executable, "-m", "pip", "--python", python]
        if subprocess.call([*pip, "install", "nox"]):
            return "nox could not be installed; pip says why above"
    return subprocess.call([python, __file__, *sys.argv[1:]])


try:
    import nox
except ModuleNotFoundError:
    sys.exit(_run_with_own_nox())

nox.options.sessions = ["lint", "tests", "faults"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
# Dozens of processes import the same modules: each is compiled once, and nothing is written beside a source.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".nox" / "bytecode")
HAS_CUDA = shutil.which("nvidia-smi") is not None
CONSTRAINTS = () if HAS_CUDA else ("-c", str(ROOT / "constraints" / "cpu.txt"))

EMBEDDED = {
    "cumulative delivery": (),
    "incremental delivery, stream_interval 4": ("--incremental-streaming-output", "--stream-interval", "4"),
}
"""The flags of the embedded reference engine, once for each delivery mode."""


@contextlib.contextmanager
def reference_server(session: nox.Session, *flags: str) -> Iterator[str]:
    """Start the reference engine on a free loopback port, give its URL, and stop it in the end."""
    program = str(Path(session.bin) / "tokenwire-reference")
    serve = ("serve", "--model", "builtin:tiny", "--port", "0", "--sampling-backend", "mirror")
    with serving(session, program, *serve, *flags) as url:
        yield url


@contextlib.contextmanager
def serving(session: nox.Session, *command: str) -> Iterator[str]:
    """Start a server, give the URL that it prints, and stop it in the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = next(
                (word for line in server.stdout for word in line.split() if word.startswith("http://")), None
            )
            if url is None:
                session.error(f"{command[0]} ended with status {server.wait()} before it printed a URL")
            yield url
        finally:
            server.terminate()


@contextlib.contextmanager
def progress(session: nox.Session, work: str) -> Iterator[None]:
    """Log every 5 seconds that the work goes on: pip prints nothing while it unpacks files."""
    done = threading.Event()

    def report() -> None:
        seconds = 0
        while not done.wait(5):
            seconds += 5
            session.log(f"still {work} ({seconds} s)")

    reporter = threading.Thread(target=report)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()


PROCESSORS = {
    "OpenBLAS for AVX2": {"OPENBLAS_CORETYPE": "Haswell"},
    "OpenBLAS for SSE": {"OPENBLAS_CORETYPE": "Nehalem"},
    "oneDNN for AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "oneDNN for SSE": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "torch for AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "torch without vectors": {"ATEN_CPU_CAPABILITY": "default"},
    "MKL for AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "MKL for SSE": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "two threads": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
    "an old processor": {
        "OPENBLAS_CORETYPE": "Nehalem",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}
"""Variables that make libraries compute as on another processor."""
COMPARES_NUMBERS = sorted(str(path) for path in Path("tests/reference").glob("test_*.py"))
"""Tests of the model, the attention, the sampler and the engine: their results are numbers of libraries."""


@nox.session
def conformance(session: nox.Session) -> None:
    """Check a server: the one that --target names, or the reference engine where none is named."""
    if any(argument.split("=")[0] == "--target" for argument in session.posargs):
        session.install(".", silent=False)
        session.run("tokenwire", "check", *session.posargs)
        return
    with progress(session, "installing torch and the other dependencies"):
        # Python compiles what it imports; pip would compile all of torch.
        session.install("--no-compile", ".[reference]", *CONSTRAINTS, silent=False)
    for name, flags in EMBEDDED.items():
        session.log(f"the reference engine: {name}")
        with reference_server(session, *flags) as url:
            # A later `--budget` replaces this one.
            session.run("tokenwire", "check", "--target", url, "--budget", "quick", *session.posargs)


FRONT_ENDS = {
    "vLLM 0.33.0, Rust": ("vllm==0.33.0", "vllm-rs serve"),
}
"""Front ends that need nothing but a file of a wheel: the wheel, and the command."""


@nox.session
def engine(session: nox.Session) -> None:
    """Run front ends over the engine: all schedules of a few tokens, and a quick check; on SGLang it decides
    every sentence of the two changes to its output side.

    `-- 'path/to/python -m sglang.launch_server'` does it with a front end that is there. A wheel that the
    index does not offer is named, and left out.
    """
    session.install("--no-compile", "-e", ".[engine,reference]", *CONSTRAINTS, silent=False)
    commands = dict.fromkeys(session.posargs, "")
    for name, (wheel, command) in FRONT_ENDS.items() if not commands else ():
        folder = Path(session.create_tmp()).resolve()
        try:
            session.run("pip", "download", "--quiet", "--no-deps", "--dest", str(folder), wheel)
        except nox.command.CommandFailed:
            session.warn(f"{name} is left out: the index does not offer {wheel}")
            continue
        program = folder / command.split()[0]
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
            program.write_bytes(archive.read(f"vllm/{program.name}"))
        program.chmod(0o755)
        commands[f"{program} serve"] = name
    for command, name in commands.items():
        session.log(name or command)
        # Both find what a release truly does: status 1 is a finding, which is shown.
        session.run("python", "-m", "proofs.schedules", "--engine", command, success_codes=[0, 1])
        report = Path(session.create_tmp()).resolve() / "report.json"
        check = ("tokenwire", "check", "--engine", command, "--budget", "quick", "--json", str(report))
        session.run(*check, success_codes=[0, 1])
        if "sglang" in command:
            session.run("python", "-m", "proofs.seed_sentences", str(report))


@nox.session
def ci(session: nox.Session) -> None:
    """Lint, types, all tests but the long proofs, and the documentation: what each change has to pass."""
    # What is imported is compiled then; pip would compile all of torch.
    session.install("--no-compile", "-e", ".[reference,dev,docs]", *CONSTRAINTS, silent=False)
    with ThreadPoolExecutor() as beside:
        # Types and the site take one process each: lint and tests go on meanwhile.
        types = beside.submit(session.run, "mypy")
        _lint(session)
        # Tests are compiled once, not by each worker.
        session.run("pytest", "--collect-only", "-qq", silent=True)
        # With the results of one short capture; `docs` judges all that was ever recorded.
        results = {"TOKENWIRE_RESULTS": "sglang/0.5.23/Q_queue.jsonl.gz"}
        site = beside.submit(session.run, "python", "-m", "mkdocs", "build", env=results)
        session.run("pytest", "-n", "auto", "-m", "not long", "--hypothesis-profile", "short")
        types.result()
        site.result()


@nox.session
def tests(session: nox.Session) -> None:
    """All tests, the long proofs too, some also as an old processor computes; and the types, torch's too."""
    session.install("-e", ".[reference,dev]", *CONSTRAINTS, silent=False)
    session.run("pytest", "-n", "auto", *session.posargs)
    if not session.posargs:
        session.run("pytest", "-n", "auto", *COMPARES_NUMBERS, env=PROCESSORS["an old processor"])
        session.run("mypy")


@nox.session
def processors(session: nox.Session) -> None:
    """The tests of the reference as other processors compute; `tests` runs some of them on an old one."""
    session.install("-e", ".[reference,dev]", *CONSTRAINTS, silent=False)
    for name, environment in PROCESSORS.items():
        session.log(f"{name}: {' '.join(f'{key}={value}' for key, value in environment.items())}")
        session.run("pytest", "-n", "auto", "tests/reference", *session.posargs, env=environment)


@nox.session
def proofs(session: nox.Session) -> None:
    """The long proofs: evidence and requests as before, 10,000 mutations of each kind, all short records."""
    session.install("-e", ".[tokenizer]", *CONSTRAINTS, silent=False)
    session.run("python", "-m", "proofs.same_evidence")
    session.run("python", "-m", "proofs.same_requests")
    session.run("python", "-m", "proofs.mutations", *session.posargs)
    session.run("python", "-m", "proofs.small_scope", "--tokens", "6")


@nox.session
def fuzz(session: nox.Session) -> None:
    """200,000 damaged captures, bodies and connections: judged or refused, and no fault of our own."""
    session.install("-e", ".[dev]", *CONSTRAINTS, silent=False)
    session.run("python", "-m", "proofs.fuzz_answers", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Small faults in our own code, a fixed sample of 300: the tests kill at least 90 %."""
    session.install("-e", ".[reference,dev]", *CONSTRAINTS, silent=False)
    session.run("python", "-m", "proofs.mutants", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """The kill matrix: every fault of the reference engine against every requirement of the specification."""
    session.install("-e", ".[reference,dev]", *CONSTRAINTS, silent=False)
    session.run("python", "-m", "proofs.kill_matrix", *session.posargs)


@nox.session
def near_ties(session: nox.Session) -> None:
    """Show that a correct server that does not repeat itself gets no FAIL."""
    session.install("-e", ".[reference,dev]", *CONSTRAINTS, silent=False)
    session.run("python", "-m", "proofs.near_ties", *session.posargs)


@nox.session
def stability(session: nox.Session) -> None:
    """The same verdicts every time: the reference checked again and again, idle and with all cores busy."""
    session.install("-e", ".[reference,dev]", *CONSTRAINTS, silent=False)
    session.run("python", "-m", "proofs.stability", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, strictly, into site/. `nox -s docs -- serve` shows it while it is written."""
    session.install("-e", ".[docs]", silent=False)
    session.run("python", "-m", "mkdocs", *(session.posargs or ("build",)))


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting, lint, the walls between the packages, and the types as far as torch has no say in them."""
    session.install("-e", ".[lint]", *CONSTRAINTS, silent=False)
    _lint(session)
    # The tests' session asks for all: it has torch.
    of_any_type = ("--allow-subclassing-any", "--allow-untyped-decorators", "--no-warn-return-any")
    session.run("mypy", *of_any_type, "--no-warn-unused-ignores")


def _lint(session: nox.Session) -> None:
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports")
    session.run("codespell")
    session.run("zizmor", "--quiet", "--offline", "--min-severity", "medium", ".github", "action.yml")


@nox.session
def regenerate(session: nox.Session) -> None:
    """All that is generated and checked in, anew: in half an hour. What was measured is left alone."""
    session.install("-e", ".[reference,dev]", *CONSTRAINTS, silent=False)
    session.run("python", "tests/spec/sealed_profiles.py")
    session.run("tokenwire", "replay", "--diff", "--update", "fixtures")
    session.run("python", "-m", "proofs.violations")
    session.run("python", "-m", "docs_build.field_tables")
    session.run("python", "tests/spec/worked_examples.py")
    session.run("python", "tests/end_to_end/traceability.py")
    session.run("python", "-m", "proofs.tutorial")
    session.run("python", "-m", "proofs.vectors")
    session.run("ruff", "format", ".")


@nox.session
def robustness(session: nox.Session) -> None:
    """The soak, hostile servers, and what follows from the reference's own OpenAPI document.

    CI's size takes 5 minutes; `--long` takes hours. Other options are those of `python -m proofs.soak`.
    """
    session.install("-e", ".[reference,dev]", *CONSTRAINTS, silent=False)
    session.run("python", "-m", "proofs.soak", *session.posargs)
    # Of each kind to each door: 20,000 requests in the long size.
    session.run(
        "python", "-m", "proofs.fuzz_doors", "--examples", "300" if "--long" in session.posargs else "30"
    )


@nox.session
def audit(session: nox.Session) -> None:
    """Write a bill of materials of what users install, bom.json; then, with a network, list known
    vulnerabilities.
    """
    session.install("cyclonedx-bom", "pip-audit", silent=False)
    shipped = Path(session.create_tmp()) / "shipped"
    python = str(shipped / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    session.run("python", "-m", "venv", "--clear", str(shipped))
    session.run(python, "-m", "pip", "install", "--quiet", ".[reference]", *CONSTRAINTS, external=True)
    session.run("cyclonedx-py", "environment", python, "--output-file", "bom.json")
    frozen = session.run(python, "-m", "pip", "freeze", "--exclude", "tokenwire", silent=True, external=True)
    listed = shipped / "requirements.txt"
    # The index knows no local versions, such as torch's +cpu.
    listed.write_text(re.sub(r"\+\w+", "", str(frozen)), "utf-8")
    # Strict: what could not be looked up was not audited.
    session.run("pip-audit", "--strict", "--no-deps", "--disable-pip", "--requirement", str(listed))


RELEASES = ("vllm", "sglang", "openai", "anthropic", "transformers")
"""The packages of `proofs/newest.yaml`."""


@nox.session
def newest(session: nox.Session) -> None:
    """Compare the newest servers and SDKs of the index with what is known: 0.4 GB are read, and nothing runs.

    `-- PATH…` reads wheels or folders such as site-packages instead. A new name goes into a dialect, or into
    `spec/unbound.yaml` with a reason.
    """
    session.install("--no-compile", "-e", ".", silent=False)
    paths = session.posargs
    if not paths:
        folder = Path(session.create_tmp()).resolve() / "newest"
        shutil.rmtree(folder, ignore_errors=True)
        # On a machine of any kind, the wheels of one: an older wheel that fits another is not the newest.
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(17, 40)]
        wheel = ("--only-binary=:all:", "--python-version=3.12", *platforms)
        session.run("pip", "download", "--quiet", "--no-deps", *wheel, "--dest", str(folder), *RELEASES)
        paths = sorted(str(path) for path in folder.iterdir())
    session.run("python", "-m", "proofs.newest", *paths)


@nox.session
def pins(session: nox.Session) -> None:
    """Write constraints/suite.txt anew: the newest versions that the action and the container may install."""
    session.install("uv", silent=False)
    pinned = ROOT / "constraints" / "suite.txt"
    header = pinned.read_text("utf-8").partition("\n")[0]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    wanted = Path(session.create_tmp()) / "build.in"
    wanted.write_text("\n".join(build), "utf-8")
    extras = ("--extra", "parrot", "--extra", "tokenizer")
    form = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate")
    files = ("pyproject.toml", str(wanted))
    lines = session.run("uv", "pip", "compile", "--quiet", *files, *extras, *form, silent=True)
    pinned.write_text(f"{header}\n{lines}", "utf-8")


@nox.session
def release(session: nox.Session) -> None:
    """Build the wheel and the source, install the wheel alone, and run its commands once."""
    session.install("build", "twine", silent=False)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    session.run("python", "-m", "build")
    built = sorted(str(path) for path in (ROOT / "dist").iterdir())
    session.run("python", "-m", "twine", "check", "--strict", *built)
    clean = Path(session.create_tmp()).resolve() / "clean"
    session.run("python", "-m", "venv", "--clear", str(clean))
    programs = clean / ("Scripts" if os.name == "nt" else "bin")
    pip = (str(programs / "python"), "-m", "pip", "install", "--quiet")
    (wheel,) = (name for name in built if name.endswith(".whl"))
    requirements = ("--require-hashes", "--requirement", str(ROOT / "constraints" / "suite.txt"))
    session.run(*pip, *requirements, external=True)
    session.run(*pip, "--no-deps", wheel, external=True)
    tokenwire = str(programs / "tokenwire")
    with session.chdir(clean):
        session.run(tokenwire, "--version", external=True)
        session.run(tokenwire, "demo", "--no-open", external=True)
        with serving(session, tokenwire, "demo", "--serve", "--correct") as url:
            session.run(tokenwire, "check", "--target", url, "--record", "recorded", external=True)
        session.run(tokenwire, "replay", "recorded", external=True)


@nox.session
def interop(session: nox.Session) -> None:
    """Other people's programs against ours: a client, two gateways, and another server under the suite."""
    others = ("anthropic", "openai", "ray", "sglang-router", "smg", "transformers[serving]")
    pinned = ("-c", str(ROOT / "constraints" / "interop.txt"))
    session.install("-e", ".[reference,dev]", *others, *CONSTRAINTS, *pinned, silent=False)
    session.run("pytest", "tests/interop", *session.posargs)


CLIENTS = {
    "httpx-sse": ("httpx_sse_client.py", "rollout_worker.py"),
    "openai": ("openai_sdk.py", "openai_responses.py"),
    "anthropic": ("anthropic_sdk.py",),
    "litellm": ("litellm_client.py",),
    "langchain-openai": ("langchain_client.py",),
}
"""Clients of the package index, and their adapters in `examples/clients/`."""


@nox.session
def clients(session: nox.Session) -> None:
    """Serve the vectors to clients, each in an environment of its own; npm's openai needs node."""
    session.install(".", silent=False)
    reports, adapters = Path(session.create_tmp()).resolve(), ROOT / "examples" / "clients"

    def torture(name: str, *command: str | Path) -> None:
        folder = reports / name.replace(" ", "-").replace("/", "-")
        adapter = ("tokenwire", "torture", "--client", name, "--report", folder, "--", *command)
        session.run(*map(str, adapter), success_codes=[0, 1])  # what it breaks, the page tells

    for client, files in CLIENTS.items():
        home = reports / "environments" / client
        venv.create(home, with_pip=True, symlinks=os.name != "nt")
        python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        session.run(str(python), "-m", "pip", "install", "-q", client, "httpx", external=True)
        says = f"from importlib.metadata import version; print(version({client!r}))"
        version = session.run(str(python), "-c", says, external=True, silent=True).strip()
        for file in files:
            torture(f"{client} {version} {Path(file).stem}", python, adapters / file)
    node = reports / "environments" / "npm-openai"
    node.mkdir(parents=True, exist_ok=True)
    session.run("npm", "install", "--prefix", str(node), "openai", external=True)
    shutil.copy(adapters / "openai_node.mjs", node)
    package = node / "node_modules" / "openai" / "package.json"
    version = json.loads(package.read_text("utf-8"))["version"]
    torture(f"npm-openai {version} openai_node", "node", node / "openai_node.mjs")
    session.run("python", "-m", "docs_build.client_results", str(reports))


@nox.session
def scale_out(session: nox.Session) -> None:
    """1, 2 and 4 replicas of the reference, asked directly and through two gateways."""
    pinned = ("-c", str(ROOT / "constraints" / "interop.txt"))
    session.install("-e", ".[reference]", "sglang-router", "smg", *CONSTRAINTS, *pinned, silent=False)
    session.run("python", "-m", "benchmarks.scale_out", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """A report in a browser: a failure is walked through by keys. Needs Chromium and its driver."""
    session.install("-e", ".[explore]", "pytest-xdist", "selenium>=4.27", silent=False)
    session.run("pytest", "tests/browser", *session.posargs)


@nox.session
def picture(session: nox.Session) -> None:
    """The picture of a report on the home of the documentation, anew. Needs Chromium."""
    session.install("-e", ".", silent=False)
    session.run("python", "-m", "docs_build.picture")


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Both sides of every performance claim, with their ratio."""
    session.install("-e", ".[reference,dev]", *CONSTRAINTS, silent=False)
    columns = ("--benchmark-columns=min,median", "--benchmark-group-by=group", "--benchmark-sort=min")
    session.run("pytest", "benchmarks", *columns, *session.posargs)
    session.run("python", "benchmarks/memory.py")
    session.run("python", "benchmarks/steps.py")
    results = session.create_tmp()
    for name in ("delivery", "engine"):
        session.run("python", f"benchmarks/{name}.py", "--write", results)
    session.run("python", "-m", "benchmarks.page", results, results)
    session.run("python", "benchmarks/judging.py")


@nox.session
def scale(session: nox.Session) -> None:
    """A fleet's captures judged by Ray tasks on this machine: the report of one replay, byte for byte."""
    session.install(".", "ray", silent=False)
    session.run("python", "benchmarks/scale.py", *session.posargs)
    session.run("python", "benchmarks/large_captures.py", "--megabytes", "10", "300")


def _main() -> int:
    """Make `python noxfile.py -s SESSION --option …` do what `nox -s SESSION -- --option …` does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-s", "--session", "--sessions", dest="sessions", nargs="+", default=[], metavar="NAME"
    )
    known, passed_on = parser.parse_known_args()
    command = [sys.executable, "-m", "nox", "-f", __file__]
    command += ["-s", *known.sessions] if known.sessions else []
    return subprocess.call([*command, "--", *(argument for argument in passed_on if argument != "--")])


if __name__ == "__main__":
    sys.exit(_main())
