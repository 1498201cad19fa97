"""One boundary for exceptions: whatever a file or a request holds, there is one sentence and no traceback."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, create_connection, socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from tokenwire import cli
from tokenwire.asking.connection import Connection
from tokenwire.demo_server import demo_server
from tokenwire.failing import TRACEBACK, failure
from tokenwire.foreign_files import parse_foreign_toml, read_foreign_yaml
from tokenwire_clients.server import torture_server
from tokenwire_clients.session import Session
from tokenwire_live.inspecting.server import JSON, PageServer

DEEP = 100_000
NESTED = "[" * DEEP
REFUSED = (2, 3, 4)
"""Exit statuses that blame no server."""


def _bomb(depth: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, depth)]
    return "\n".join(lines)


ANY: Mapping[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)),
    "not UTF-8": b"\xff\xfe\x00\xd8",
    "nul": b"\0" * 100,
}
TEXTS: Mapping[str, Mapping[str, bytes]] = {
    "json": {
        "deep": NESTED.encode(),
        "deep and closed": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        "infinite": b'{"number": 1e400}',
        "many digits": b'{"number": ' + b"9" * 10_000 + b"}",
        "list": b"[]",
        "number": b"1",
        "unclosed": b'{"' + b'\\"' * 50_000,
        "lone surrogate": b'{"a": "\\ud800"}',
    },
    "yaml": {
        "bomb": _bomb(6).encode(),
        "own anchor": b"scenario: &a [*a]\n",
        "deep": NESTED.encode(),
        "deep lists": b"- " * DEEP,
        "many digits": b"a: " + b"1:" * 50_000 + b"1",
        "tag": b"!!python/object/apply:os.system ['true']",
        "no date": b"a: 2001-99-99",
        "list": b"- a",
        "number": b"1",
        "no alias": b"*a",
    },
    "toml": {
        "deep": b"a = " + NESTED.encode(),
        "deep and closed": b"a = " + b"[" * DEEP + b"]" * DEEP,
        "deep tables": b"[" + b"a." * DEEP + b"a]",
        "many digits": b"a = " + b"9" * 10_000,
        "wrong kinds": b"target = [1]\nbudget = 7\ndialects = 3\n[[failure]]\nrequirement = 1",
        "no date": b"a = 2001-99-99",
    },
}


def _lines(content: bytes) -> bytes:
    return b'{"kind":"request","format":1,' + content[1:] if content.startswith(b"{") else content


def _folder(name: str) -> Callable[[Path, bytes], Path]:
    """What makes a folder with one hostile file in it."""

    def make(path: Path, content: bytes) -> Path:
        path.mkdir()
        (path / name).write_bytes(content)
        return path

    return make


def _file(suffix: str, change: Callable[[bytes], bytes] = lambda content: content) -> Callable[..., Path]:
    def make(path: Path, content: bytes) -> Path:
        file = path.with_suffix(suffix)
        file.write_bytes(change(content))
        return file

    return make


KINDS: Mapping[str, tuple[str, Callable[[Path, bytes], Path]]] = {
    "config": ("toml", _file(".toml")),
    "baseline": ("toml", _file(".toml")),
    "known": ("toml", _file(".toml")),
    "dialect": ("yaml", _file(".yaml")),
    "scenario": ("yaml", _file(".yaml")),
    "tokenizer": ("json", _folder("tokenizer.json")),
    "notes": ("json", _folder("run.json")),
    "capture": ("json", _file(".jsonl")),
    "begun capture": ("json", _file(".jsonl", _lines)),
    "zipped capture": ("json", _file(".jsonl.gz", gzip.compress)),
    "not zipped capture": ("json", _file(".jsonl.gz")),
    "report": ("json", _file(".json")),
    "tally": ("json", _file(".gz", gzip.compress)),
}
"""What holds the text of a kind of file, and how it is written."""
_CAPTURES = ("capture", "begun capture", "zipped capture", "not zipped capture")
READ: Mapping[str, tuple[str, ...]] = {
    "config": ("config",),
    "baseline": ("baseline",),
    "known": ("known",),
    "dialect": ("dialect",),
    "scenario_file": ("scenario",),
    "tokenizer": ("tokenizer",),
    "resume": ("notes",),
    "paths": _CAPTURES,
    "tallies": ("tally", "report"),
    "first": (*_CAPTURES, "report"),
    "reports": ("report",),
    "file": ("baseline",),
}
"""The kinds of files that each parameter of a command reads."""
WRITTEN = frozenset(
    {"json", "junit", "html", "sarif", "badge", "trace", "report", "tally", "record", "folder", "log"}
)
LISTENS = frozenset({"cut", "inspect", "watch", "torture", "demo"})


def _commands(app: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """The words and parameters of each command."""
    for command in app.registered_commands:
        function = command.callback
        alone = len(app.registered_commands) == 1
        yield (
            before if alone else (*before, command.name or function.__name__.strip("_")),
            signature(function, eval_str=True).parameters,
        )
    for group in app.registered_groups:
        yield from _commands(group.typer_instance, before)


def _reading() -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Each command with each of its parameters that reads a file, and each kind that this may be."""
    for command in cli.all_commands():
        for words, parameters in _commands(cli.module_of(command).app, (command,)):
            for name, parameter in parameters.items():
                if "Path" in str(parameter.annotation) or name in READ:
                    if name in WRITTEN or (command == "init" and name == "file"):
                        continue
                    assert name in READ, f"{' '.join(words)} reads {name}: say in READ what it may be"
                    yield from ((words, name, kind) for kind in READ[name])


def _line(words: tuple[str, ...], parameter: str, file: Path, url: str, folder: Path) -> list[str]:
    """A command line that reads the file."""
    flags = {"scenario_file": "--scenario-file", "reports": "--from"}
    positional = {"paths", "tallies", "file"}
    line = [*words]
    if parameter == "first":
        line += [str(file), str(file)]
    elif parameter in positional:
        line += [str(file)]
    else:
        line += [flags.get(parameter, f"--{parameter}"), str(file)]
    match words:
        case ("check" | "record" | "inspect" | "init" | "watch", *_):
            line += ["--target", url]
        case ("compare" | "twin", *_) if parameter != "first":
            line += [url, url]
        case ("replay", *_) if parameter != "paths":
            line += [str(_SMALL)]
        case ("merge", *_) if parameter != "tallies":
            line += [str(folder / "missing.gz")]
    if words[0] == "record":
        line.insert(1, str(folder / "recorded"))
    if words[0] == "parrot":
        line.insert(1, str(folder / "parrot"))
    if words[0] == "watch":
        line += ["--listen", "127.0.0.1:0", "--sample", "nonsense"]
    if words == ("baseline", "update") and parameter != "reports":
        line += ["--from", str(folder / "missing.json")]
    return line


_SMALL = Path(__file__).parents[2] / "fixtures" / "sglang" / "0.5.23" / "F_mirror.jsonl.gz"


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a port where nothing listens."""
    with socket(AF_INET, SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def _run(line: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["tokenwire", *line])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


CASES = list(dict.fromkeys(_reading()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join((*case[0], *case[1:])))
def test_a_hostile_file_ends_in_a_sentence(
    case: tuple[tuple[str, ...], str, str],
    nobody: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words, parameter, kind = case
    monkeypatch.chdir(tmp_path)
    text, make = KINDS[kind]
    problems = []
    contents = {**ANY, **TEXTS[text]}
    if text == "toml":
        del contents["empty"]  # it says nothing, and may
    for number, (name, content) in enumerate(contents.items()):
        file = make(tmp_path / f"hostile-{number}", content)
        status = _run(_line(words, parameter, file, nobody, tmp_path / str(number)), monkeypatch)
        printed = "".join(capfd.readouterr())
        if (
            status not in REFUSED
            or "Traceback" in printed
            or not printed.strip()
            or (status == 3 and len(printed.strip().splitlines()) != 1)
        ):
            problems.append((name, status, printed[-300:]))
    assert problems == []


def test_every_kind_of_file_and_every_command_is_tried() -> None:
    assert {kind for _, _, kind in CASES} == KINDS.keys()
    assert {words[0] for words, _, _ in CASES} >= set(cli.all_commands()) - {
        "again",
        "explain",
        "list",
        "init",
    } - LISTENS


class _Panic(BaseException):
    """What libraries in Rust raise is no Exception."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RecursionError("maximum recursion depth exceeded"),
            "RecursionError: maximum recursion depth exceeded",
        ),
        (OverflowError("int too large"), "OverflowError: int too large"),
        (MemoryError(), "memory ran out"),
        (_Panic("index out of\n bounds \x1b[2J"), "_Panic: index out of bounds �[2J"),
        (ExceptionGroup("several", [ExceptionGroup("more", [KeyError("name")])]), "KeyError: 'name'"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("traced", [False, True])
def test_any_exception_is_one_sentence(
    error: BaseException,
    words: str,
    traced: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fails)
    monkeypatch.setattr(sys, "argv", ["tokenwire", "check"])
    monkeypatch.delenv(TRACEBACK, raising=False)
    if traced:
        monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    first, *rest = capsys.readouterr().err.splitlines()
    assert ended.value.code == 3
    assert first == f"tokenwire check failed: {words}; {first.partition('; ')[2]}"
    assert "TOKENWIRE_TRACEBACK=1" in first
    assert bool(rest) is traced


def test_an_interrupt_is_a_word_and_no_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tokenwire.explanation.explain", interrupted)
    monkeypatch.setattr("tokenwire.commands.explain.explain", interrupted, raising=False)
    assert _run(["explain", "cumulative-ids-extend"], monkeypatch) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_longest_words_are_cut() -> None:
    assert len(failure("it", ValueError("x" * 10_000))) < 600


@pytest.mark.parametrize("name", TEXTS["yaml"])
def test_yaml_of_strangers_is_bounded(name: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(TEXTS["yaml"][name])
    if name in {"list", "number"}:
        read_foreign_yaml(file)
    else:
        import yaml

        with pytest.raises((ValueError, yaml.YAMLError)):
            read_foreign_yaml(file)


@pytest.mark.parametrize("name", sorted(TEXTS["toml"].keys() - {"wrong kinds"}))
def test_toml_of_strangers_is_bounded(name: str) -> None:
    with pytest.raises(ValueError, match=r"parts|deep|statement|digits"):
        parse_foreign_toml(TEXTS["toml"][name].decode())


@pytest.mark.parametrize("key", ["a.", "a . ", '"a".', "a-b."])
def test_a_key_of_many_parts_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="more than 50 parts"):
        parse_foreign_toml(f"{key * 51}a = 1")
    assert parse_foreign_toml(f"{key * 20}a = '{'a.' * 20}'")


def test_aliases_count_each_time_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: &a {b: [1, 2]}\nc: {<<: *a, d: *a}\n")
    assert read_foreign_yaml(file) == {"a": {"b": [1, 2]}, "c": {"b": [1, 2], "d": {"b": [1, 2]}}}
    file.write_text(_bomb(20))  # 9 ** 20 values: it would never be read
    with pytest.raises(ValueError, match="more than 200,000 values"):
        read_foreign_yaml(file)


# Listeners.

BODIES = {**ANY, **TEXTS["json"]}
HEADS = {
    "no number": {"Content-Length": "x"},
    "negative": {"Content-Length": "-1"},
    "huge": {"Content-Length": "9" * 30},
}


async def _fails(_: object) -> Any:
    raise RecursionError("too deep")


async def _takes(wanted: Mapping[str, Any]) -> Any:
    return [int(wanted["number"])]


async def _fails_later(_: Mapping[str, str]) -> Any:
    raise OverflowError("too large")
    yield


@pytest.mark.parametrize("name", BODIES)
def test_a_page_refuses_a_hostile_body(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def answer() -> bytes:
        server = PageServer({}, {"deed": _takes})
        await server.listen()
        try:
            return await _sent(server.url, "POST", "deed", BODIES[name])
        finally:
            await server.close()

    assert asyncio.run(answer()).startswith(b"HTTP/1.1 400 ")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("method", "path"), [("POST", "fails"), ("GET", "fails"), ("GET", "events")])
def test_a_page_that_fails_is_one_sentence(method: str, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def page(_: str) -> tuple[str, str]:
        return JSON, await _fails(None)

    async def answer() -> bytes:
        server = PageServer({"fails": page}, {"fails": _fails}, _fails_later)
        await server.listen()
        try:
            return await _sent(server.url, method, path, b"{}" if method == "POST" else b"")
        finally:
            await server.close()

    assert b" 500 " in asyncio.run(answer())
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("a request of the page failed: ")


async def _sent(url: str, method: str, path: str, body: bytes) -> bytes:
    """What a page answers to its own origin."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = (
        f"{method} {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\nOrigin: http://{parts.netloc}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.fixture(params=["demo", "torture"])
def local_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        if request.param == "demo":
            yield stack.enter_context(demo_server()), "/generate"
        else:
            yield stack.enter_context(torture_server(Session())), "/tokenwire/report/openai-chat/text"


def test_a_local_server_answers_a_hostile_body(
    local_server: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    url, path = local_server
    parts = urlsplit(url)
    wrong = {
        f'"{kind}"': json.dumps({"text": "a", "sampling_params": kind}).encode() for kind in ([], 1, "a")
    }
    for name, body in {**BODIES, **wrong}.items():
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        connection.request("POST", path, body)
        assert connection.getresponse().status in (200, 400, 404), name
        connection.close()
    for name, headers in HEADS.items():
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        connection.request("POST", path, None, headers)
        assert connection.getresponse().status == 400, name
        connection.close()
    with create_connection((parts.hostname, parts.port), timeout=60) as raw:
        raw.sendall(b"\x16\x03\x01\x00\xff\x00\r\n\r\n")
        raw.recv(1 << 16)
    assert capfd.readouterr().err == ""


def test_an_exchange_that_is_over_takes_no_second_end() -> None:
    """Three tracebacks of `InvalidStateError` stood before the report of a run that was interrupted."""
    reported: list[Mapping[str, Any]] = []

    async def interrupted() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))

        def take(_time: float, _data: bytes) -> None:
            connection.over.cancel()
            raise asyncio.InvalidStateError

        connection = Connection(take)
        connection.data_received(b"some")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert connection.over.cancelled()

    asyncio.run(interrupted())
    assert reported == []


LISTENERS = {
    "tokenwire_live/inspecting/server.py": "the page tests above: `inspect`, and the pages of `watch`",
    "tokenwire/local_server.py": "the tests of local servers above: `demo` and `torture`",
    "tokenwire_live/cutting.py": "test_cutting: it passes bytes on, and parses its own requests",
    "tokenwire_live/watch/proxy.py": "test_watch_proxy: it parses nothing, and passes bytes on",
}
"""The files in which a socket listens, and what holds their boundary."""


def test_every_listener_is_known() -> None:
    folder = Path(cli.__file__).parents[1]
    found = {
        str(file.relative_to(folder))
        for file in folder.rglob("*.py")
        if any(
            words in file.read_text("utf-8") for words in ("start_server(", "create_server(", "HTTPServer)")
        )
    }
    assert found == LISTENERS.keys()
