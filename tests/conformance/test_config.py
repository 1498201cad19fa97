"""Settings in files: what they may say, and how it is told where they say something else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tokenwire.asking.planning import planned
from tokenwire.commands.init import lines_of_file
from tokenwire.config import HEADERS, KEYS, TABLES, find_config, read_config
from tokenwire.settings import Option, Settings
from tokenwire.usage_error import UsageError
from tokenwire.wire.credentials import header_value
from tokenwire.wire.exchange import HttpRequest
from tokenwire.wire.redaction import redact


def examples(keys: dict[str, Option]) -> str:
    return "".join(f"{name} = {key.example}\n" for name, key in keys.items())


EVERYTHING = examples(KEYS) + "".join(f"[{name}]\n{examples(keys)}" for name, keys in TABLES.items())


def write(folder: Path, text: str, name: str = "tokenwire.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    return folder / name


def test_every_key_is_read_as_its_own_example_says(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, EVERYTHING))
    assert config.headers == (("Authorization", "Bearer env:MY_KEY"),)
    assert set(config.defaults) == {option.name for name, option in KEYS.items() if name != HEADERS}
    assert config.defaults["max_concurrency"] == 16
    assert config.defaults["tokenizer"] == str(tmp_path / "models/mine")
    for name, keys in TABLES.items():
        assert set(config.of_command[name]) == {option.name for option in keys.values()}
    assert config.of_command["watch"]["record"] == str(tmp_path / "violations")
    assert config.of_command["watch"]["record_cap"] == 256


def test_what_is_for_one_command_is_told_to_no_other(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, EVERYTHING))
    assert config.defaults_of("watch")["record"] == str(tmp_path / "violations")
    assert config.defaults_of("watch")["target"] == "http://127.0.0.1:30000"
    assert config.defaults_of("check") == config.defaults


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ('targt = "http://h"', "targt is not a setting; did you mean 'target'?"),
        (
            "timeout = 'fast'",
            "is 'fast', but must be a number from 0.1 to 604800, in seconds; write timeout = 60",
        ),
        ("timeout = true", "timeout is True"),
        ("max-tokens = 1.5", "max-tokens is 1.5, but must be a whole number from 1 to 1000000000000"),
        ('dialects = "sglang-generate"', "must be a list of names in quotes"),
        ('dialects = ["sglang-generat"]', "did you mean 'sglang-generate'?"),
        ('capabilities = ["logprob"]', "did you mean 'logprobs'?"),
        ('profiles = ["cor"]', "did you mean 'core'?"),
        ('budget = "quik"', "did you mean 'quick'?"),
        ('headers = { Authorization = "Bearer abc" }', "headers.Authorization contains a credential"),
        ('without = ["crwd"]', "did you mean 'crowd'?"),
        ("gentle = 1", "gentle is 1, but must be true or false; write gentle = true"),
        ("headers = { X = 1 }", "must be a table of texts"),
        ("watch = 1", "watch is 1, not a table; write [watch]"),
        (
            '[watch]\nlisten = "8000"',
            "watch.listen is '8000', but must be HOST:PORT, in quotes; write listen =",
        ),
        (
            "[watch]\ndrain = -1",
            "watch.drain is -1, but must be a number from 0 to 604800, in seconds; write",
        ),
        (
            "[watch]\nrecord-cap = 0",
            "watch.record-cap is 0, but must be a whole number from 1 to 1048576, in MiB",
        ),
        ("[watch]\nadmn = 1", "watch.admn is not a setting; did you mean 'admin'?"),
        (
            '[watch]\ntarget = "http://h"',
            "watch.target is not a setting; it applies to all commands: write it above",
        ),
        ('listen = "127.0.0.1:0"', "listen is not a setting; write it below [watch]"),
        ("= 1", "is not TOML"),
    ],
)
def test_what_a_file_may_not_say_is_told_with_file_key_and_way_out(tmp_path: Path, line, refusal) -> None:
    path = write(tmp_path, f"{line}\n")
    with pytest.raises(UsageError) as caught:
        read_config(path)
    assert refusal in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_a_server_says_of_itself_sets_nothing_in_the_file() -> None:
    about = "Written for evil 1\ngentle = true\n# \x1b[2J."
    file = "\n".join(lines_of_file({}, {}, about))
    assert tomllib.loads(file) == {}


def test_all_that_init_comments_out_may_be_said(tmp_path: Path) -> None:
    lines = "\n".join(lines_of_file({}, {}, "Written for a test.")).splitlines()
    settings = [line.removeprefix("# ") for line in lines if re.match(r"# (\[|[a-z-]+ = )", line)]
    config = read_config(write(tmp_path, "\n".join(settings)))
    assert config == read_config(write(tmp_path, EVERYTHING))


def test_the_nearest_folder_that_has_settings_is_taken(tmp_path: Path) -> None:
    write(tmp_path, 'target = "http://far"')
    write(tmp_path / "a", "[tool.other]\n", "pyproject.toml")
    (tmp_path / "a" / "b").mkdir()
    assert find_config(tmp_path / "a" / "b").defaults["target"] == "http://far"
    write(tmp_path / "a", '[tool.tokenwire]\ntarget = "http://near"\n', "pyproject.toml")
    assert find_config(tmp_path / "a" / "b").defaults["target"] == "http://near"


def test_a_table_is_named_as_it_stands_in_the_shared_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[tool.tokenwire]\ndrain = 1\n", "pyproject.toml")
    with pytest.raises(UsageError, match=r"write it below \[tool\.tokenwire\.watch\]"):
        read_config(path)
    write(tmp_path, "[tool.tokenwire.watch]\ndrain = 1\n", "pyproject.toml")
    assert read_config(path).of_command == {"watch": {"drain": 1}}


def test_two_files_of_one_folder_do_not_both_hold_settings(tmp_path: Path) -> None:
    write(tmp_path, 'target = "http://h"')
    write(tmp_path, "[tool.tokenwire]\n", "pyproject.toml")
    with pytest.raises(UsageError, match="both contain settings"):
        find_config(tmp_path)


def test_a_header_takes_its_key_from_the_environment() -> None:
    assert header_value("A", "Bearer env:KEY", {"KEY": "s3"}) == "Bearer s3"
    assert header_value("A", "keep-env:KEY", {}) == "keep-env:KEY"
    with pytest.raises(UsageError, match="KEY is not set"):
        header_value("A", "env:KEY", {})
    with pytest.raises(UsageError, match="line break"):
        header_value("A", "env:KEY", {"KEY": "a\r\nX: b"})


def test_a_header_from_the_environment_is_secret_whatever_it_is_called() -> None:
    headers = (("X-Tenant", "env:T"), ("X-Plain", "seen"))
    plan = planned(Settings(target="http://h", file_headers=headers), {"T": "me"})
    assert plan.headers == (("X-Tenant", "me"), ("X-Plain", "seen"))
    shown = redact(HttpRequest("GET", "/", headers=plan.headers), plan.secrets)
    assert shown.headers == (("X-Tenant", "[redacted]"), ("X-Plain", "seen"))
