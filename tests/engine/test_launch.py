"""Front ends are started over the engine, and everything is ended: here a small one stands in for vLLM's."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tokenwire.commands import check
from tokenwire.local_server import free_port
from tokenwire.parrot.vocabulary import Vocabulary
from tokenwire.settings import Settings
from tokenwire.usage_error import UsageError
from tokenwire_engine.command import _ended
from tokenwire_engine.launch import Family, Wanted, fields_in, front_end, sglang_command, vllm_command
from tokenwire_engine.sglang import main as start_sglang
from tokenwire_parrot.checkpoint import write_parrot

PROMPT = [300 + place for place in range(16)]


def ask(url: str, **body: Any) -> Any:
    data = json.dumps({"prompt": PROMPT, "max_tokens": 4, **body}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read().decode()
    if body.get("stream"):
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return json.loads(text)


def ids_of(events: list[Any]) -> list[list[int]]:
    return [event["choices"][0]["token_ids"] for event in events]


def test_a_front_end_answers_by_the_law_in_the_steps_that_it_is_asked_for(vllm_rs: Path) -> None:
    with front_end(Wanted(Family.VLLM, (str(vllm_rs), "serve"))) as running:
        assert ids_of(ask(running.url, stream=True)) == [[300], [301], [302], [303]]
        scheduled = ask(running.url, stream=True, vllm_xargs={"tokenwire": "steps=3;late"})
        assert ids_of(scheduled) == [[300, 301, 302], [303], []]
        assert ask(running.url)["choices"][0]["finish_reason"] == "length"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(running.url, timeout=5)


def test_a_default_schedule_is_that_of_requests_without_one(vllm_rs: Path) -> None:
    wanted = Wanted(Family.VLLM, (str(vllm_rs), "serve"), schedule="steps=4")
    with front_end(wanted) as running:
        assert len(ask(running.url, stream=True)) == 1


def test_an_engine_dies_by_schedule_and_the_front_end_says_so(vllm_rs: Path) -> None:
    with front_end(Wanted(Family.VLLM, (str(vllm_rs), "serve"))) as running:
        events = ask(running.url, stream=True, vllm_xargs={"tokenwire": "die=2"})
        assert events[-1]["choices"][0]["finish_reason"] == "error"
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{running.url}/health", timeout=5)


def test_every_message_is_written_where_it_is_asked_for(vllm_rs: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with front_end(Wanted(Family.VLLM, (str(vllm_rs), "serve"), trace=trace)) as running:
        ask(running.url)
    lines = [json.loads(line) for line in trace.read_text("utf-8").splitlines()]
    assert [next(iter(line)) for line in lines] == ["in", *["out"] * 4]
    assert lines[0]["in"][1][1] == PROMPT


def test_the_tokenizer_of_a_model_is_served_where_one_is_named(vllm_rs: Path, tmp_path: Path) -> None:
    write_parrot(tmp_path / "p", vocabulary=Vocabulary.SENTENCEPIECE, with_weights=False)
    assert not (tmp_path / "p" / "model.safetensors").exists()
    words = (str(vllm_rs), "serve")
    with front_end(Wanted(Family.VLLM, words, tokenizer=tmp_path / "p")) as running:
        assert ask(running.url)["choices"][0]["token_ids"] == PROMPT[:4]
    wanted = Wanted(Family.VLLM, words, tokenizer=tmp_path)
    with pytest.raises(UsageError, match=r"--tokenizer: .*tokenizer\.json does not exist"), front_end(wanted):
        pass


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("no-such-folder/vllm-rs", "serve"), "pip download vllm==.*vllm/vllm-rs"),
        (("no-such-folder/vllm", "serve"), "pip install vllm"),
        (("no-such-folder/python", "-m", "x"), "path of the interpreter"),
    ],
)
def test_a_front_end_that_is_missing_is_named_with_the_way_out(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message), front_end(Wanted(Family.VLLM, words)):
        pass


def stub(folder: Path, name: str, body: str) -> str:
    program = folder / name
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}\n", "utf-8")
    program.chmod(0o755)
    return str(program)


def test_a_front_end_that_ends_at_once_shows_the_end_of_its_log(tmp_path: Path) -> None:
    broken = stub(
        tmp_path, "vllm-rs", "print('vllm-rs 0.33.0') if '--version' in sys.argv else sys.exit('no room')"
    )
    wanted = Wanted(Family.VLLM, (broken, "serve"))
    with (
        pytest.raises(UsageError, match=r"ended with status 1 before it answered:\nno room"),
        front_end(wanted),
    ):
        pass


def test_an_unknown_release_is_refused_before_it_is_started(tmp_path: Path) -> None:
    newer = stub(tmp_path, "vllm-rs", "print('vllm-rs 0.99.0')")
    with (
        pytest.raises(UsageError, match=r"vLLM 0\.99\.0 is unknown"),
        front_end(Wanted(Family.VLLM, (newer, "serve"))),
    ):
        pass


def test_fields_are_read_from_source_without_running_it(tmp_path: Path) -> None:
    source = tmp_path / "engine.py"
    source.write_text(
        "import nothing_like_that\nclass Other:\n    x: int\nclass Output:\n    a: int\n    b: str = ''\n"
    )
    assert fields_in(source, "Output") == ("a", "b")


def test_the_words_of_a_front_end_keep_their_flags_and_get_the_model(tmp_path: Path) -> None:
    wanted = Wanted(Family.VLLM, ("vllm", "serve", "--stream-interval", "4", "--port=99"))
    command = vllm_command(wanted, tmp_path, 1, 2)
    assert command[:3] == ["vllm", "serve", str(tmp_path)]
    assert command[-3:] == ["--stream-interval", "4", "--port=99"]
    assert command.count("--port") == 0
    assert "--data-parallel-rpc-port" in command
    assert "--handshake-port" in vllm_command(Wanted(Family.VLLM, ("a/vllm-rs", "serve")), tmp_path, 1, 2)
    of_sglang = Wanted(Family.SGLANG, ("python3", "-m", "sglang.launch_server", "--stream-interval", "4"))
    command = sglang_command(of_sglang, tmp_path, 7)
    assert command[:3] == ["python3", "-m", "tokenwire_engine.sglang"]
    assert command[-2:] == ["--stream-interval", "4"]
    assert command[command.index("--port") + 1] == "7"
    script = stub(tmp_path, "sglang", "")
    command = sglang_command(Wanted(Family.SGLANG, (script, "serve", "--tp", "1")), tmp_path, 7)
    assert command[:3] == [sys.executable, "-m", "tokenwire_engine.sglang"]
    assert command[-2:] == ["--tp", "1"]


# The command.


def tokenwire(*words: str, **options: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    program = [sys.executable, "-m", "tokenwire", *words]
    return subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options)


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert " answers at http://" in line, line
    return line.split()[line.split().index("at") + 1]


def crash(url: str) -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        urllib.request.urlopen(urllib.request.Request(f"{url}/crash", b""), timeout=20)


def test_a_front_end_that_crashes_is_started_again_at_its_address(vllm_rs: Path) -> None:
    with tokenwire("engine", "vllm", "--attached", "--again", "--", str(vllm_rs), "serve") as process:
        first = url_of(process)
        assert process.stdout is not None
        for _ in range(2):
            crash(first)
            assert process.stdout.readline().startswith("check it")
            assert url_of(process) == first
        assert ask(first)["choices"][0]["token_ids"] == PROMPT[:4]
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "the front end ended with status 3\n" * 2


def test_a_front_end_that_crashes_ends_the_command_otherwise(vllm_rs: Path) -> None:
    with tokenwire("engine", "vllm", "--attached", "--", str(vllm_rs), "serve") as process:
        crash(url_of(process))
        assert process.wait(20) == 1


def is_gone(url: str) -> bool:
    """Wait until nothing answers there."""
    for _ in range(400):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
        except (OSError, urllib.error.URLError):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_sigterm_ends_the_command_and_the_front_end(vllm_rs: Path) -> None:
    with tokenwire("engine", "vllm", "--", str(vllm_rs), "serve") as process:
        url = url_of(process)
        assert ask(url)["choices"][0]["token_ids"] == PROMPT[:4]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert is_gone(url)


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_signal_in_the_middle_of_waiting_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of an event was taken twice there, and the command hung."""
    slept = []

    def interrupted(seconds: float) -> None:
        slept.append(seconds)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    with _ended(attached=False) as ending:
        monkeypatch.setattr("tokenwire_engine.launch.time.sleep", interrupted)
        assert ending.wait()
    assert len(slept) == 1


def test_a_command_that_loses_its_parent_ends_the_front_end(vllm_rs: Path) -> None:
    with tokenwire("engine", "vllm", "--attached", "--", str(vllm_rs), "serve") as process:
        url = url_of(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert is_gone(url)


def test_a_front_end_that_ends_by_itself_ends_the_command(tmp_path: Path, vllm_rs: Path) -> None:
    source = vllm_rs.read_text("utf-8").replace("self.is_dead = True", "import os; os._exit(3)")
    mortal = tmp_path / "vllm-rs"
    mortal.write_text(source, "utf-8")
    mortal.chmod(0o755)
    with tokenwire("engine", "vllm", "--", str(mortal), "serve") as process:
        url = url_of(process)
        with pytest.raises((OSError, urllib.error.URLError)):
            ask(url, vllm_xargs={"tokenwire": "die=1"})
        assert process.wait(20) == 1
        assert process.stderr is not None
        assert "the front end ended with status 3" in process.stderr.read()


def test_check_starts_asks_and_stops_everything(vllm_rs: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("--engine", f"{vllm_rs} serve", "--dialect", "vllm-completions", "--scenario", "greedy-stream")
    with tokenwire("check", *words, "--requirement", "script-ids-are-said", "--json", str(report)) as process:
        printed, errors = process.communicate(timeout=100)
    assert process.returncode == 0, printed + errors
    document = json.loads(report.read_text("utf-8"))
    assert {row["verdict"] for row in document["verdicts"]} == {"PASS"}
    assert is_gone(document["target"]["url"])


def test_scenarios_of_schedules_are_asked_where_an_engine_reads_them(vllm_rs: Path, tmp_path: Path) -> None:
    report, capture = tmp_path / "report.json", tmp_path / "capture"
    words = (
        "--engine",
        f"{vllm_rs} serve",
        "--dialect",
        "vllm-completions",
        "--requirement",
        "script-ids-are-said",
    )
    names = ("scheduled-steps", "scheduled-ends", "scheduled-batches")
    asked = [word for name in names for word in ("--scenario", name)]
    with tokenwire("check", *words, *asked, "--record", str(capture), "--json", str(report)) as process:
        printed, errors = process.communicate(timeout=100)
    assert process.returncode == 1, printed + errors
    asked_for = {path.stem for path in capture.rglob("*.jsonl*")}
    assert {"stops-schedule-5-stream", "late-abort-stream", "late-key-whole"} <= asked_for
    verdicts = {row["scenario"]: row for row in json.loads(report.read_text("utf-8"))["verdicts"]}
    assert verdicts["scheduled-steps"]["verdict"] == "FAIL", "this front end looks for no stop string"
    seen = {row["exchange"] for row in verdicts["scheduled-steps"]["evidence"]}
    assert all("/stop" in name for name in seen)
    assert {name: verdicts[name]["verdict"] for name in names[1:]} == dict.fromkeys(names[1:], "PASS")


@pytest.mark.parametrize(("words", "wait"), [([], 600.0), (["--wait", "7"], 7.0)])
def test_a_check_goes_on_when_a_front_end_that_crashed_is_back(
    words: list[str], wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    @contextmanager
    def below(command: str, *, again: bool) -> Iterator[str]:
        seen.append((command, again))
        yield "http://127.0.0.1:9"

    def judged(settings: Settings, *_: object, **__: object) -> None:
        seen.append((settings.target, settings.wait, settings.keep_failures))

    monkeypatch.setattr(check, "engine_below", below)
    monkeypatch.setattr(check, "_ask_and_judge", judged)
    result = CliRunner().invoke(check.app, ["--engine", "vllm-rs serve", *words])
    assert result.exit_code == 0, result.output
    assert seen == [("vllm-rs serve", True), ("http://127.0.0.1:9", wait, False)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--target is missing: give the URL of the server"),
        (["--target", "http://127.0.0.1:9", "--engine", "vllm-rs serve"], "give one of them"),
        (["--engine", "no-such-folder/vllm-rs serve"], "name it as `./vllm/vllm-rs serve`"),
    ],
)
def test_check_refuses_what_it_cannot_start(words: list[str], message: str) -> None:
    with tokenwire("check", *words) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert message in " ".join(errors.split())
    assert "Traceback" not in errors


def test_an_environment_without_sglang_is_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)  # an import fails as if it were not installed
    with pytest.raises(SystemExit, match=r"^sglang is missing in .*: install SGLang there"):
        start_sglang()


def test_a_port_is_as_low_as_a_front_end_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang puts its gRPC port 10,000 above it."""
    bound = iter([60_001, 59_000, 42_001])

    class Probe:
        def __enter__(self) -> "Probe":
            return self

        def __exit__(self, *_: object) -> None: ...

        def bind(self, _: object) -> None: ...

        def getsockname(self) -> tuple[str, int]:
            return "", next(bound, 60_002)

    monkeypatch.setattr("tokenwire.local_server.socket.socket", Probe)
    assert free_port(55_535) == 42_001
    with pytest.raises(UsageError, match="found no free port up to 55535; give one with --port"):
        free_port(55_535)
