"""Read `tokenwire.toml`, or `[tool.tokenwire]` in `pyproject.toml`: the settings of a project.

The file sets defaults for options. Each command uses the keys for which it has an option. Keys for a single
command are in a table with the command's name. Instead of credentials, a file contains the names of
environment variables. `Settings` declares the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tokenwire.foreign_files import parse_foreign_toml
from tokenwire.settings import OPTIONS, Option
from tokenwire.typed_table import suggestion
from tokenwire.usage_error import UsageError
from tokenwire.wire.credentials import from_environment
from tokenwire.wire.redaction import names_credential

OWN_FILE = "tokenwire.toml"
_SHARED_FILE = "pyproject.toml"
HEADERS = "headers"


def _tables() -> dict[str, dict[str, Option]]:
    """Return the keys of each table, by the name of the table. The name is empty for keys of all commands."""
    tables: dict[str, dict[str, Option]] = {"": {}}
    for option in OPTIONS.values():
        if option.key:
            table, _, name = option.key.rpartition(".")
            tables.setdefault(table, {})[name] = option
    return tables


TABLES = _tables()
KEYS = TABLES.pop("")
"""The keys for all commands, in the order of `tokenwire init`. `TABLES` has the keys for single commands."""


def names_of(kind: str) -> Collection[str]:
    """Return all known names of a kind, such as all scenarios."""
    match kind:  # imports are local, because most commands do not need them
        case "dialect":
            from tokenwire.dialects.dialect import load_dialects

            return load_dialects()
        case "scenario":
            from tokenwire.asking.scenario import load_scenarios

            return load_scenarios()
        case "profile":
            from tokenwire.profile import known_profiles

            return known_profiles()
        case "requirement":
            from tokenwire.requirement import load_requirements

            return load_requirements()
    from tokenwire.target.capability import known_capabilities

    return known_capabilities()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_table_of_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_address(value: Any) -> bool:
    from tokenwire.wire.address import Address

    try:
        return _is_text(value) and bool(Address.listening(value))
    except UsageError:
        return False


def value_of(option: Option) -> tuple[str, Callable[[Any], bool]]:
    """Return a description of the valid values of a key, and a predicate for a TOML value."""
    if option.key == HEADERS:
        return "a table of texts", _is_table_of_texts
    if option.several:
        return "a list of names in quotes", _are_texts
    if option.type is bool:
        return "true or false", lambda value: isinstance(value, bool)
    if option.type in (int, float):
        least, most = option.least, option.most
        assert least is not None, option.name
        assert most is not None, option.name
        kind = "a whole number" if option.type is int else "a number"
        unit = {"MIB": ", in MiB", "SECONDS": ", in seconds"}.get(option.metavar or "", "")
        return f"{kind} from {least} to {most}{unit}", (
            lambda value: type(value) in {int, option.type} and least <= value <= most
        )
    kind = option.metavar or " or ".join(_known(option))
    return f"{kind}, in quotes", _is_address if kind == "HOST:PORT" else _is_text


@dataclass(frozen=True)
class Config:
    """The settings that a file contains."""

    source: str = ""
    """The path of the file, for messages. Empty if there is no file."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults by the parameter names of commands."""
    headers: tuple[tuple[str, str], ...] = ()
    """The headers as the file contains them. Their values name environment variables."""
    of_command: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Defaults for single commands, by the command's name."""

    def defaults_of(self, command: str) -> Mapping[str, Any]:
        """Return the defaults of one command, by parameter name."""
        return {**self.defaults, **self.of_command.get(command, {})}


def _table(path: Path) -> Mapping[str, Any] | None:
    """Return the table of settings in a file. None if the file has no such table. Raises UsageError."""
    try:
        document = parse_foreign_toml(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; name an existing file") from error
    except ValueError as error:  # text that is not UTF-8 raises a ValueError as well
        raise UsageError(f"{path} is not TOML: {error}") from error
    if path.name != _SHARED_FILE:
        return document
    tool = document.get("tool")
    table = tool.get("tokenwire") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: tool.tokenwire is {table!r}, not a table; write [tool.tokenwire]")
    return table


def _known(option: Option) -> Collection[str]:
    """Return the names that an option accepts. Empty if it accepts every name."""
    if issubclass(option.type, StrEnum):
        return [member.value for member in option.type]
    return names_of(option.names) if option.names else ()


def _check_names(where: str, option: Option, value: Any) -> None:
    known = _known(option)
    for name in value if isinstance(value, list) else [value]:
        if known and name not in known and not option.names_file(name):
            hint = suggestion(name, known, f"known are {', '.join(sorted(known))}")
            raise UsageError(f"{where} names {name!r}, which is unknown; {hint}")


def _check_headers(where: str, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if names_credential(name) and not from_environment(value):
            raise UsageError(
                f"{where}.{name} contains a credential; keep it in an environment variable and write "
                f'{name} = "env:MY_KEY"'
            )


def _heading(path: Path, table: str) -> str:
    return f"[tool.tokenwire.{table}]" if path.name == _SHARED_FILE else f"[{table}]"


def _place_of(path: Path, table: str, name: str) -> str:
    """Describe the table to which a misplaced key belongs. Empty if the key is unknown."""
    if table:
        return f"it applies to all commands: write it above {_heading(path, table)}" if name in KEYS else ""
    owners = [f"write it below {_heading(path, owner)}" for owner, keys in TABLES.items() if name in keys]
    return owners[0] if owners else ""


def _values(path: Path, table: str, settings: Any) -> dict[str, Any]:
    """Return the settings of a table by parameter name. `table` is empty for the top level. Raises
    UsageError.
    """
    if not isinstance(settings, dict):
        raise UsageError(f"{path}: {table} is {settings!r}, not a table; write {_heading(path, table)}")
    keys = TABLES[table] if table else KEYS
    values: dict[str, Any] = {}
    for name, value in settings.items():
        where = f"{path}: {table}.{name}" if table else f"{path}: {name}"
        if name not in keys:
            hint = _place_of(path, table, name) or suggestion(name, keys, f"known are {', '.join(keys)}")
            raise UsageError(f"{where} is not a setting; {hint}")
        option = keys[name]
        wanted, fits = value_of(option)
        if not fits(value):
            raise UsageError(f"{where} is {value!r}, but must be {wanted}; write {name} = {option.example}")
        _check_names(where, option, value)
        if option.type is Path:
            values[option.name] = str(path.parent / value)
        elif isinstance(value, list):
            files = [option.names_file(entry) for entry in value]
            values[option.name] = [
                str(path.parent / entry) if is_file else entry
                for entry, is_file in zip(value, files, strict=True)
            ]
        elif name != HEADERS:
            values[option.name] = value
    return values


def read_config(path: Path) -> Config:
    """Return the settings in one file. Raises UsageError."""
    table = _table(path)
    if table is None:
        raise UsageError(f"{path} has no table [tool.tokenwire]; write one, or name a {OWN_FILE}")
    shared = {name: value for name, value in table.items() if name not in TABLES}
    defaults = _values(path, "", shared)
    headers = shared.get(HEADERS, {})
    _check_headers(f"{path}: {HEADERS}", headers)
    of_command = {name: _values(path, name, value) for name, value in table.items() if name in TABLES}
    return Config(str(path), defaults, tuple(headers.items()), of_command)


def find_config(start: Path) -> Config:
    """Return the settings of the nearest folder with a settings file, from `start` upwards.

    The result is empty if no folder has a settings file. Raises UsageError for an invalid file, and if one
    folder has settings in both kinds of files.
    """
    for folder in (start, *start.parents):
        alone, shared = folder / OWN_FILE, folder / _SHARED_FILE
        tables = [path for path in (alone, shared) if path.is_file() and _table(path) is not None]
        if len(tables) > 1:
            raise UsageError(
                f"{alone} and [tool.tokenwire] in {shared} both contain settings; keep one of them"
            )
        if tables:
            return read_config(tables[0])
    return Config()
