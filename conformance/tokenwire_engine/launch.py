"""Starts a front end over the engine, waits until the front end answers, and stops both."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from threading import Thread

from tokenwire.local_server import free_port
from tokenwire.parrot.law import Parrot, positions_of
from tokenwire.parrot.vocabulary import Vocabulary
from tokenwire.usage_error import UsageError
from tokenwire_engine.front_end import UnknownVersionError, demand_known
from tokenwire_engine.schedule import parse_schedule
from tokenwire_parrot.checkpoint import write_parrot

_HOST = "127.0.0.1"
_POLL_S = 0.05
_GRACE_S = 3.0
"""Seconds before a front end that does not stop is killed."""
_LOG_LINES = 15
_MOST_PORT = {"vllm": 65535, "sglang": 55535}
"""The highest port for a front end. SGLang's gRPC port is 10,000 higher."""
_PACKAGES = ("tokenwire", "tokenwire_engine")


class Family(StrEnum):
    """The server families whose front ends are supported."""

    VLLM = "vllm"
    SGLANG = "sglang"


DEFAULTS = {Family.VLLM: "", Family.SGLANG: "info=mirror_token_id,mirror_position"}
"""The default schedule of requests, by server family.

For SGLang, the schedule attaches values to tokens, as SGLang's samplers can do.
"""


@dataclass(frozen=True)
class Wanted:
    """The front end to start, with its options."""

    family: Family
    words: tuple[str, ...]
    """The command line of the front end, without model and ports."""
    vocabulary: Vocabulary = Vocabulary.BYTE_LEVEL
    tokenizer: Path | None = None
    """The folder of a model whose tokenizer is used; None for a vocabulary of `tokenwire parrot`."""
    schedule: str = ""
    """The schedule of requests that do not contain one."""
    version: str = ""
    """The release whose protocol is used; empty to ask the front end for its version."""
    trace: Path | None = None
    log: Path | None = None
    """The file for the front end's output.

    None: a temporary file, whose end is shown if the front end fails.
    """
    ready_s: float = 300.0

    def at(self, port: int) -> Wanted:
        """Return the same front end with another port."""
        return self if self.flag("--port") else replace(self, words=(*self.words, "--port", str(port)))

    def flag(self, name: str) -> str:
        """Return the value of a flag on the command line; empty if the flag is missing."""
        for place, word in enumerate(self.words):
            if word == name:
                return self.words[place + 1] if place + 1 < len(self.words) else ""
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return ""


_MISSING = {
    "vllm-rs": (
        "the Rust front end is a file in vLLM's wheel: `pip download vllm==0.33.0 --no-deps`, then "
        "`unzip vllm-*.whl vllm/vllm-rs`, and name it as `./vllm/vllm-rs serve`"
    ),
    "vllm": "install it with `pip install vllm`, or give the path of the program in its environment",
}


def program(words: Sequence[str]) -> str:
    """Return the path of a program. If the program is missing, raises UsageError with advice."""
    found = shutil.which(words[0])
    if found is None:
        name = Path(words[0]).name
        way_out = _MISSING.get(name, "give the path of the interpreter of the front end's environment")
        raise UsageError(f"there is no program {words[0]!r}; {way_out}")
    return found


def _place_of_serve(words: Sequence[str]) -> int:
    """Return the index at which the flags of a vLLM command begin. Raises UsageError."""
    if "serve" not in words:
        raise UsageError(f"{' '.join(words)!r} is not a serve command; write `vllm-rs serve` or `vllm serve`")
    return words.index("serve") + 1


_ABOUT_VLLM = (
    "import importlib.metadata, importlib.util\n"
    "print(importlib.metadata.version('vllm'))\n"
    "print(importlib.util.find_spec('vllm').origin)"
)


def vllm_version(words: Sequence[str]) -> tuple[str, tuple[str, ...] | None]:
    """Return the version of a vLLM front end, and the fields of its outputs if its source code is available.

    Raises UsageError.
    """
    if is_rust(words):
        told = _printed([words[0], "--version"])
    else:  # The version is read from the package's metadata, because running the program takes many seconds.
        python = words[0] if "-m" in words else _interpreter(words[0])
        told = _printed([python, "-c", _ABOUT_VLLM])
    found = re.search(r"(?<!\d)\d+\.\d+\.\d+(?:[.a-z]+\d+)*", told)
    if found is None:
        raise UsageError(f"{words[0]} does not print its version; add --front-end-version X.Y.Z")
    lines = told.splitlines()
    source = Path(lines[-1]).parent / "v1" / "engine" / "__init__.py"
    return found[0], fields_in(source, "EngineCoreOutput") if source.is_file() else None


def is_rust(words: Sequence[str]) -> bool:
    """True if a command is vLLM's Rust front end."""
    return Path(words[0]).name == "vllm-rs"


def _printed(command: Sequence[str]) -> str:
    """Run a program, and return the text that it prints. Raises UsageError if the program fails."""
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if told.returncode:
        last = told.stderr.strip().splitlines()[-1:]
        raise UsageError(f"{command[0]} does not print its version: {''.join(last)}")
    return told.stdout


def fields_in(source: Path, name: str) -> tuple[str, ...]:
    """Return the names of the fields of a class, by parsing its source file without running it."""
    tree = ast.parse(source.read_text("utf-8"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    lines = [line for one in classes for line in one.body if isinstance(line, ast.AnnAssign)]
    return tuple(line.target.id for line in lines if isinstance(line.target, ast.Name))


def vllm_command(wanted: Wanted, folder: Path, port: int, handshake: int) -> list[str]:
    """Return the command line of a vLLM front end that waits for an external engine."""
    place = _place_of_serve(wanted.words)
    addresses = (
        ["--handshake-port", str(handshake)]
        if is_rust(wanted.words)
        else ["--data-parallel-address", _HOST, "--data-parallel-rpc-port", str(handshake)]
    )
    ours = ["--data-parallel-size", "1", "--data-parallel-size-local", "0", *addresses]
    if not wanted.flag("--port"):
        ours += ["--port", str(port)]
    if not wanted.flag("--host"):
        ours += ["--host", _HOST]
    if not wanted.flag("--served-model-name"):
        ours += ["--served-model-name", "parrot"]
    return [*wanted.words[:place], str(folder), *ours, *wanted.words[place:]]


def sglang_command(wanted: Wanted, folder: Path, port: int) -> list[str]:
    """Return the command line of SGLang's server with our scheduler."""
    words = list(wanted.words)
    place = next((i for i, word in enumerate(words) if word == "-m"), 0)
    interpreter = words[:place] if place else [_interpreter(words[0])]
    place += bool(place)
    ours = ["--model-path", str(folder), "--device", "cpu", "--served-model-name", "parrot"]
    if not wanted.flag("--port"):
        ours += ["--port", str(port)]
    rest = [word for word in words[place + 1 :] if word not in ("launch_server", "serve")]
    return [*interpreter, "-m", "tokenwire_engine.sglang", *ours, *rest]


def _interpreter(script: str) -> str:
    """Return the Python interpreter that the first line of a script names."""
    with Path(program([script])).open("rb") as file:
        line = file.readline().decode(errors="replace").strip()
    if not line.startswith("#!"):
        raise UsageError(f"{script} is not a Python script; write `python -m sglang.launch_server`")
    return line.removeprefix("#!").split()[0]


@dataclass
class Ending:
    """A flag that tells the program to end, and that a signal handler may set.

    `threading.Event` is not suitable, because its lock could deadlock in a signal handler.
    """

    wished: bool = False

    def wish(self) -> None:
        """Set the flag."""
        self.wished = True

    def wait(self) -> bool:
        """Wait a short time; return True if the flag is set."""
        if not self.wished:
            time.sleep(_POLL_S)
        return self.wished


@dataclass
class FrontEnd:
    """A running front end, with the engine below it."""

    url: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    seconds: float
    """Seconds from the start of the front end to its first answer."""

    def wait(self, ending: Ending) -> int | None:
        """Wait until the front end ends, or until the flag is set. Return its exit status, or None."""
        while not ending.wait():
            if (status := self.process.poll()) is not None:
                return status
        return None


@contextlib.contextmanager
def front_end(wanted: Wanted, ending: Ending | None = None) -> Iterator[FrontEnd]:
    """Run a front end over the engine in this context. Raises UsageError.

    `ending`: a flag that stops waiting for the first answer.
    """
    ending = ending or Ending()
    words = (program(wanted.words), *wanted.words[1:])
    wanted = replace(wanted, words=words)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tokenwire-engine-")))
        folder = scratch / "parrot"
        law = _write_parrot(folder, wanted)
        port = int(wanted.flag("--port") or free_port(_MOST_PORT[wanted.family]))
        environment = dict(os.environ)
        if wanted.family is Family.VLLM:
            command = _join_vllm(wanted, folder, law, port)
        else:
            command = sglang_command(wanted, folder, port)
            environment |= _environment_of_sglang(wanted, law, scratch)
        log = wanted.log or scratch / "front-end.log"
        output = stack.enter_context(log.open("ab"))
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        stack.callback(_end, process)
        url = f"http://{wanted.flag('--host') or _HOST}:{port}"
        _demand_answer(url, process, log, started + wanted.ready_s, ending)
        yield FrontEnd(url, port, process, log, time.monotonic() - started)


def _write_parrot(folder: Path, wanted: Wanted) -> Parrot:
    """Write a parrot without weights; return its rules. Raises UsageError."""
    try:
        return write_parrot(
            folder, vocabulary=wanted.vocabulary, tokenizer=wanted.tokenizer, with_weights=False
        )
    except (ValueError, OSError) as error:
        raise UsageError(f"--tokenizer: {error}") from error


def _join_vllm(wanted: Wanted, folder: Path, law: Parrot, port: int) -> list[str]:
    """Start the engine in a thread; return the command line of the vLLM front end that connects to it."""
    try:
        from tokenwire_engine import vllm
    except ImportError as error:
        raise UsageError(
            f"{error.name} is missing: pip install 'tokenwire[engine]' (pyzmq and msgspec)"
        ) from error
    version, fields = (wanted.version, None) if wanted.version else vllm_version(wanted.words)
    try:
        demand_known("vLLM", vllm.OUTPUTS, version, fields)
    except UnknownVersionError as error:
        raise UsageError(str(error)) from error
    handshake = free_port()
    options = vllm.VllmOptions(
        f"tcp://{_HOST}:{handshake}",
        law,
        folder,
        version,
        int(wanted.flag("--max-model-len") or positions_of(law.distance)),
        parse_schedule(wanted.schedule),
        trace=wanted.trace,
    )
    Thread(target=vllm.serve, args=(options,), daemon=True).start()
    return vllm_command(wanted, folder, port, handshake)


def _environment_of_sglang(wanted: Wanted, law: Parrot, scratch: Path) -> Mapping[str, str]:
    """Return environment variables with which SGLang's interpreter can import this package, but no other
    package of Tokenwire.
    """
    packages = scratch / "packages"
    packages.mkdir()
    for name in _PACKAGES:
        source = Path(str(sys.modules[name].__file__)).parent
        (packages / name).symlink_to(source, target_is_directory=True)
    path = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH", ""))))
    found = {"PYTHONPATH": path, "TOKENWIRE_DISTANCE": str(law.distance)}
    if wanted.schedule:
        found["TOKENWIRE_SCHEDULE"] = wanted.schedule
    if wanted.trace is not None:
        found["TOKENWIRE_TRACE"] = str(wanted.trace)
    if wanted.version:
        found["TOKENWIRE_VERSION"] = wanted.version
    return found


def _demand_answer(
    url: str, process: subprocess.Popen[bytes], log: Path, until: float, ending: Ending
) -> None:
    """Wait until the front end answers. If it does not answer, raises UsageError with the end of its log."""
    while not _answers(url):
        status = process.poll()
        if status is not None:
            raise UsageError(f"the front end ended with status {status} before it answered:\n{_tail(log)}")
        if time.monotonic() > until:
            raise UsageError(f"the front end does not answer at {url}/health:\n{_tail(log)}")
        if ending.wait():
            raise UsageError("ended before the front end answered")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _tail(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return "\n".join(lines[-_LOG_LINES:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a front end and all processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
