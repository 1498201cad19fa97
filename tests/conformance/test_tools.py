"""Tools add commands to `tokenwire` by the entry point `tokenwire.extensions`."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenwire import cli, spec_files, tools
from tokenwire.usage_error import UsageError


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each test find its own extensions."""
    monkeypatch.setattr(tools, "tool_commands", tools.tool_commands.__wrapped__)
    monkeypatch.setattr(cli, "tool_commands", tools.tool_commands)


def installed(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    points = tuple(EntryPoint(name, name, "tokenwire.extensions") for name in modules)
    monkeypatch.setattr(tools, "extensions", lambda: points)


def package(folder: Path, name: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise AssertionError('imported')\n", "utf-8")
    (folder / name / "commands.toml").write_text(table, "utf-8")
    monkeypatch.syspath_prepend(folder)
    installed(monkeypatch, name)


def test_help_shows_the_commands_of_tools_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No tool is imported for its line."""
    table = '[mine]\nmodule = "mine_tool.command"\nhelp = "Do as I do."\n'
    package(tmp_path, "mine_tool", table, monkeypatch)
    shown = CliRunner().invoke(cli.app, ["--help"]).output
    core, _, of_tools = shown.partition("Tools:\n")
    assert "check " in core
    assert "mine" not in core
    assert "  mine  Do as I do." in of_tools
    assert cli.all_commands()[-1] == "mine"


def test_a_command_of_the_core_looks_for_no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "extensions", lambda: pytest.fail("looked for"))
    assert CliRunner().invoke(cli.app, ["explain", "--help"]).exit_code == 0


def test_without_tools_an_unknown_command_tells_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    ran = CliRunner().invoke(cli.app, ["watch"])
    assert ran.exit_code == 2
    assert "pip install -e ." in " ".join(ran.output.split())
    with pytest.raises(UsageError, match="no installed package has the command twin"):
        tools.command_module("twin")


def test_a_table_with_an_unknown_field_names_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package(tmp_path, "odd_tool", '[odd]\nmodule = "odd"\nhelp = "Odd."\ncolour = "red"\n', monkeypatch)
    with pytest.raises(ValueError, match=r"odd_tool/commands\.toml: the command odd: .*colour"):
        tools.tool_commands()


def test_an_extension_adds_data_or_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    points = (EntryPoint("empty", "json", "tokenwire.extensions"),)
    monkeypatch.setattr(spec_files, "extensions", lambda: points)
    with pytest.raises(ValueError, match=r"neither a folder `spec` nor a file `commands\.toml`"):
        spec_files.spec_folders.__wrapped__()
