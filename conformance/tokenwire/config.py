"""`tokenwire.toml`, or `[tool.tokenwire]` in `pyproject.toml`: what a project always says to `tokenwire`.

A file gives defaults and nothing else: the command line beats it. One file serves all commands: each takes
the keys that it has an option for, and what is for one command alone stands in a table of its name. Keys of
credentials name environment variables; their values never stand in a file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenwire.asking.scenario import Budget, load_scenarios
from tokenwire.dialects.dialect import load_dialects
from tokenwire.profile import load_profiles
from tokenwire.target.capability import known_capabilities
from tokenwire.typed_table import suggestion
from tokenwire.watch.proxy import Address, BadAddress
from tokenwire.wire.credentials import from_environment
from tokenwire.wire.redaction import names_credential

OWN_FILE = "tokenwire.toml"
SHARED_FILE = "pyproject.toml"


class ConfigError(ValueError):
    """A file of settings is not what it should be; the message names the file, the key and the way out."""


def _nothing() -> Collection[str]:
    return ()


@dataclass(frozen=True)
class Key:
    """One key of the file."""

    option: str
    """The parameter of the commands that it is the default of."""
    wants: str
    """What its value is, in words."""
    fits: Callable[[Any], bool]
    example: str
    known: Callable[[], Collection[str]] = _nothing
    """The names that may stand there; empty where any may."""
    is_path: bool = False
    """A path below the folder of the file."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_positive(value: Any) -> bool:
    return type(value) in {int, float} and value > 0


def _is_from_zero(value: Any) -> bool:
    return type(value) in {int, float} and value >= 0


def _is_address(value: Any) -> bool:
    try:
        return _is_text(value) and bool(Address.listening(value))
    except BadAddress:
        return False


def _are_headers(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(each) for each in value.values())


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


_TEXT, _TEXTS = "a text in quotes", "a list of names in quotes"
_COUNT, _NUMBER = "a whole number of at least 1", "a number above 0"

KEYS: dict[str, Key] = {
    "target": Key("target", _TEXT, _is_text, '"http://127.0.0.1:30000"'),
    "worker": Key("worker", _TEXT, _is_text, '"http://127.0.0.1:30001"'),
    "model": Key("model", _TEXT, _is_text, '"my-model"'),
    "dialects": Key("dialect", _TEXTS, _are_texts, '["sglang-generate"]', load_dialects),
    "capabilities": Key("declare", _TEXTS, _are_texts, '["logprobs"]', known_capabilities),
    "profiles": Key("profile", _TEXTS, _are_texts, '["core"]', load_profiles),
    "budget": Key("budget", _TEXT, _is_text, '"standard"', lambda: [each.value for each in Budget]),
    "tokenizer": Key("tokenizer", "a folder, in quotes", _is_text, '"models/mine"', is_path=True),
    "baseline": Key("baseline", "a file, in quotes", _is_text, '"tokenwire-baseline.toml"', is_path=True),
    "headers": Key("", "a table of texts", _are_headers, '{ Authorization = "Bearer env:MY_KEY" }'),
    "timeout": Key("timeout", _NUMBER, _is_positive, "60"),
    "max-concurrency": Key("max_concurrency", _COUNT, _is_count, "16"),
    "max-tokens": Key("max_tokens", _COUNT, _is_count, "200000"),
    "max-requests": Key("max_requests", _COUNT, _is_count, "3000"),
    "price": Key("price", "IN,OUT, in quotes", _is_text, '"0.5,1.5"'),
    "max-cost": Key("max_cost", _NUMBER, _is_positive, "2.5"),
    "rate": Key("rate", _NUMBER, _is_positive, "10"),
    "gentle": Key("gentle", "true or false", _is_boolean, "true"),
    "without": Key("without", _TEXTS, _are_texts, '["crowd"]', load_scenarios),
    "keep-failures": Key("keep_failures", "true or false", _is_boolean, "false"),
    "restart": Key("restart", "a shell command, in quotes", _is_text, '"systemctl restart my-server"'),
    "wait": Key("wait", _NUMBER, _is_positive, "300"),
}
"""The keys for all commands, in the order in which `tokenwire init` writes them."""

_ADDRESS = "HOST:PORT, in quotes"

TABLES: dict[str, dict[str, Key]] = {
    "watch": {
        "listen": Key("listen", _ADDRESS, _is_address, '"127.0.0.1:8000"'),
        "admin": Key("admin", _ADDRESS, _is_address, '"127.0.0.1:9464"'),
        "record": Key("record", "a folder, in quotes", _is_text, '"violations"', is_path=True),
        "record-cap": Key("record_cap", f"{_COUNT}, in MiB", _is_count, "256"),
        "drain": Key("drain", "a number of at least 0", _is_from_zero, "10"),
    },
}
"""What one command alone is told: the keys of the table of its name."""


@dataclass(frozen=True)
class Config:
    """What a file says."""

    source: str = ""
    """The file, for messages; empty where there is none."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values by the parameters of the commands."""
    headers: tuple[tuple[str, str], ...] = ()
    """As they stand in the file: with the names of environment variables."""
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values for one command alone, by its name."""

    def defaults_of(self, command: str) -> Mapping[str, Any]:
        """Values by the parameters of one command."""
        return {**self.defaults, **self.own.get(command, {})}


def _table(path: Path) -> Mapping[str, Any] | None:
    """The settings in a file; None where it holds none. Raises ConfigError."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name a file that is there") from error
    except ValueError as error:  # also text that is not UTF-8
        raise ConfigError(f"{path} is no TOML: {error}") from error
    if path.name != SHARED_FILE:
        return document
    tool = document.get("tool")
    table = tool.get("tokenwire") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.tokenwire is {table!r}, not a table; write [tool.tokenwire]")
    return table


def _check_names(where: str, key: Key, value: Any) -> None:
    known = key.known()
    for name in value if isinstance(value, list) else [value]:
        if known and name not in known:
            hint = suggestion(name, known, f"known are {', '.join(sorted(known))}")
            raise ConfigError(f"{where} names {name!r}, which is unknown; {hint}")


def _check_headers(where: str, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if names_credential(name) and not from_environment(value):
            raise ConfigError(
                f"{where}.{name} holds a credential itself; keep it in an environment variable and write "
                f'{name} = "env:MY_KEY"'
            )


def _heading(path: Path, table: str) -> str:
    return f"[tool.tokenwire.{table}]" if path.name == SHARED_FILE else f"[{table}]"


def _place_of(path: Path, table: str, name: str) -> str:
    """Where a key belongs that does not stand there; empty where it is known nowhere."""
    if table:
        return f"it is one for all commands: write it above {_heading(path, table)}" if name in KEYS else ""
    owners = [f"it belongs below {_heading(path, owner)}" for owner, keys in TABLES.items() if name in keys]
    return owners[0] if owners else ""


def _values(path: Path, table: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the parameters of the commands; `table` is empty for the keys that stand above all tables.

    Raises ConfigError.
    """
    keys = TABLES[table] if table else KEYS
    values: dict[str, Any] = {}
    for name, value in said.items():
        where = f"{path}: {table}.{name}" if table else f"{path}: {name}"
        if name not in keys:
            hint = _place_of(path, table, name) or suggestion(name, keys, f"known are {', '.join(keys)}")
            raise ConfigError(f"{where} is no setting; {hint}")
        key = keys[name]
        if not key.fits(value):
            raise ConfigError(f"{where} is {value!r}, and wants {key.wants}; write {name} = {key.example}")
        _check_names(where, key, value)
        if key.option:
            values[key.option] = str(path.parent / value) if key.is_path else value
    return values


def _own_values(path: Path, table: str, said: Any) -> dict[str, Any]:
    """What one command alone is told. Raises ConfigError."""
    if not isinstance(said, dict):
        raise ConfigError(f"{path}: {table} is {said!r}, not a table; write {_heading(path, table)}")
    return _values(path, table, said)


def read_config(path: Path) -> Config:
    """The settings of one file. Raises ConfigError."""
    table = _table(path)
    if table is None:
        raise ConfigError(f"{path} has no table [tool.tokenwire]; write one, or name a {OWN_FILE}")
    shared = {name: value for name, value in table.items() if name not in TABLES}
    defaults = _values(path, "", shared)
    headers = shared.get("headers", {})
    _check_headers(f"{path}: headers", headers)
    own = {name: _own_values(path, name, value) for name, value in table.items() if name in TABLES}
    return Config(str(path), defaults, tuple(headers.items()), own)


def find_config(start: Path) -> Config:
    """The settings of the nearest folder, from `start` upwards, that has some; empty where none has.

    Raises ConfigError, also where both files of one folder hold settings.
    """
    for folder in (start, *start.parents):
        own, shared = folder / OWN_FILE, folder / SHARED_FILE
        tables = [path for path in (own, shared) if path.is_file() and _table(path) is not None]
        if len(tables) > 1:
            raise ConfigError(f"{own} and [tool.tokenwire] in {shared} both hold settings; keep one of them")
        if tables:
            return read_config(tables[0])
    return Config()
