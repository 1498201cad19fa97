"""Options: what follows from the one place that declares them."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from inspect import isfunction
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import typer
from typer.testing import CliRunner

from tokenwire.ask import Budget
from tokenwire.asking.planning import planned
from tokenwire.cli import all_commands, app, module_of
from tokenwire.config import value_of
from tokenwire.judging.verdict import ExitStatus
from tokenwire.settings import ASKS_LESS, JUDGES_LESS, OPTIONS, REMEMBERED, RESUMED, Settings, taken_by


def test_an_option_belongs_to_commands_that_exist_and_differs_only_there() -> None:
    assert {name for option in OPTIONS.values() for name in option.commands} <= set(all_commands())
    assert [name for name, option in OPTIONS.items() if not option.but.keys() <= {*option.commands}] == []
    assert {field.name for field in fields(Settings)} == {*OPTIONS, "file_headers", "given"}


def test_a_command_has_the_flags_that_the_fields_declare() -> None:
    program = typer.main.get_command(app)
    context = program.make_context("tokenwire", [], resilient_parsing=True)
    for name in (
        "check",
        "record",
        "compare",
        "replay",
        "merge",
        "watch",
        "init",
        "again",
        "demo",
        "twin",
        "torture",
    ):
        _, command, _ = program.resolve_command(context, [name])
        flags = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        declared = {flag for option in taken_by(name) for words in option.flags for flag in words.split("/")}
        assert declared <= flags
        assert {"--target", "--json", "--listen"} - declared == {"--target", "--json", "--listen"} - flags


def test_an_example_of_the_file_sets_its_option() -> None:
    for option in OPTIONS.values():
        if option.key:
            ((_, value),) = tomllib.loads(f"value = {option.example}").items()
            words, fits = value_of(option)
            assert fits(value), f"{option.toml} is not {words}"
            assert not fits(object()), option.name


def test_every_number_has_two_bounds_and_its_default_lies_between_them() -> None:
    """`watch --sample 7` judged as much as `--sample 1`."""
    numbers = [option for option in OPTIONS.values() if option.type in {int, float}]
    assert {option.name for option in numbers if option.least is None or option.most is None} == set()
    for option in numbers:
        assert option.default is None or option.least <= option.default <= option.most, option.name
        if option.key:
            words, fits = value_of(option)
            assert f"from {option.least} to {option.most}" in words
            assert (fits(option.least), fits(option.most)) == (True, True)
            assert not fits(option.type(option.most + 1))
            assert not fits(option.type(option.least) - 1)


def test_every_number_that_a_command_alone_takes_has_two_bounds() -> None:
    numbers = {}
    for module in map(module_of, all_commands()):
        for name, function in vars(module).items():
            if isfunction(function) and function.__module__ == module.__name__:
                for parameter, hint in get_type_hints(function, include_extras=True).items():
                    if get_origin(hint) is Annotated and {int, float} & {
                        *get_args(get_args(hint)[0]),
                        get_args(hint)[0],
                    }:
                        (declared,) = get_args(hint)[1:]
                        numbers[f"{module.__name__}.{name} {parameter}"] = declared.min, declared.max
    assert numbers
    assert {name for name, bounds in numbers.items() if None in bounds} == set()


def test_a_share_above_one_is_refused() -> None:
    words = ["watch", "--listen", "127.0.0.1:0", "--target", "http://127.0.0.1:1", "--sample", "7"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == ExitStatus.USAGE
    assert "Invalid value for '--sample'" in ran.output


def test_values_survive_the_notes_of_a_run() -> None:
    before = Settings(budget=Budget.SOAK, dialect=("a", "b"), tokenizer=Path("models/mine"), wait=3.0)
    notes = json.loads(json.dumps(before.values(REMEMBERED), default=str))
    assert Settings.of(notes) == before


def test_only_what_stands_on_the_command_line_is_named_as_a_filter() -> None:
    settings = Settings(
        gentle=True, keyword="ids", scenario=("probe",), given=frozenset({"gentle", "keyword"})
    )
    assert settings.narrowed_by(ASKS_LESS) == ("--gentle",)
    assert settings.narrowed_by(ASKS_LESS | JUDGES_LESS) == ("--gentle", "-k ids")


def test_every_command_that_asks_keeps_the_same_limits() -> None:
    """`record` and `compare` passed over max-requests and max-cost of tokenwire.toml."""
    limits = [option for option in OPTIONS.values() if option.key and option.roles & ASKS_LESS]
    limits += [OPTIONS[name] for name in ("rate", "max_concurrency", "price", "timeout")]
    assert {"max_requests", "max_cost", "gentle", "without"} <= {option.name for option in limits}
    for option in limits:
        assert {"check", "record", "compare"} <= set(option.commands), option.name
        assert option.roles & (REMEMBERED | RESUMED) or option.name == "max_tokens", option.name


def test_a_run_is_resumed_only_with_the_same_options_in_any_order() -> None:
    first = Settings(target="http://h", scenario=("a", "b"), worker="http://w/")
    assert (
        planned(first).asked
        == planned(Settings(target="http://h", scenario=("b", "a"), worker="http://w")).asked
    )
    for other in (Settings(seed=1), Settings(channels="hermes"), Settings(file_headers=(("X-A", "b"),))):
        assert planned(Settings()).asked != planned(other).asked
    assert planned(Settings()).asked == planned(Settings(timeout=5.0, rate=1.0)).asked


def test_an_option_that_a_command_alone_takes_stands_beside_those_of_the_settings() -> None:
    ran = CliRunner().invoke(app, ["replay", "--help"])
    assert "--diff" in ran.output
    assert "--requirement" in ran.output
