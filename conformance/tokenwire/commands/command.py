"""Makes a command from a function and the options in `Settings`, and validates values of options."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

import typer

from tokenwire.commands.trust import brought, demand_trust
from tokenwire.config import Config, find_config, names_of, read_config
from tokenwire.disk import system_says, why_unwritable
from tokenwire.settings import OPTIONS, Option, Settings, taken_by
from tokenwire.typed_table import suggestion
from tokenwire.usage_error import UsageError


def declarable() -> dict[str, str]:
    """Return the capabilities that a user may declare.

    They are the capabilities that at least one requirement needs.
    """
    from tokenwire.requirement import load_requirements
    from tokenwire.target.advertised import LOGPROB_RULES
    from tokenwire.target.capability import (
        BATCH_INVARIANCE,
        DECLARED_RULE,
        WEIGHT_UPDATES,
        known_capabilities,
    )

    needed = {name for row in load_requirements().values() for name in row.applies_when}
    needed = needed - {DECLARED_RULE} | {BATCH_INVARIANCE, WEIGHT_UPDATES, *LOGPROB_RULES}
    return {name: absent for name, absent in known_capabilities().items() if name in needed}


def _tool_call_forms() -> Collection[str]:
    from tokenwire.dialects.markup import load_markup

    return load_markup()[1]


def _demand_known(kind: str, names: Iterable[str], every: Collection[str]) -> None:
    """Check that all names are known.

    For an unknown name, raise BadParameter with the most similar known name.
    """
    for name in names:
        if name not in every:
            kinds = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
            hint = suggestion(name, every, f"`tokenwire list {kinds}` lists all")
            raise typer.BadParameter(f"there is no {kind} {name!r}; {hint}")


def _own_dialects(names: Sequence[str]) -> Collection[str]:
    """Return the dialect names that an option contains.

    If the option names a YAML file, load the file and register its dialect. Raises BadParameter.
    """
    from tokenwire.dialects.dialect import named_dialects

    try:
        return named_dialects(names)
    except ValueError as error:
        raise typer.BadParameter(f"--dialect {error}") from error


def _demand_names(settings: Settings) -> None:
    """Check that all names in options are known. Scenarios in files are registered. Raises BadParameter."""
    for file in settings.scenario_file:
        # Imported here, because the import is slow and few commands need it.
        from tokenwire.asking.scenario_file import load_scenario_file

        with usage_errors():
            load_scenario_file(file)
    for option in OPTIONS.values():
        if option.names and (names := getattr(settings, option.name)):
            every = declarable() if option.names == "capability" else names_of(option.names)
            if option.names == "dialect":
                names = _own_dialects(names)
            _demand_known(option.names, names, every)
    if settings.channels and settings.channels not in (forms := _tool_call_forms()):
        raise typer.BadParameter(
            f"--channels {settings.channels} is not a format of tool calls; known are {', '.join(forms)}"
        )


@contextmanager
def usage_errors(*others: type[Exception]) -> Iterator[None]:
    """Convert UsageError, and `others`, to click's usage errors, which have exit status 2."""
    shown: tuple[type[Exception], ...] = (UsageError, *others)
    try:
        yield
    except shown as error:
        raise typer.BadParameter(str(error)) from error


def _configured(context: typer.Context, file: Path | None) -> Path | None:
    """Use the values of a settings file as defaults of the other options."""
    with usage_errors():
        config = read_config(file) if file is not None else find_config(Path.cwd())
    defaults = config.defaults_of(context.info_name or "")
    context.default_map = {**(context.default_map or {}), **defaults}
    context.obj = config
    return file


def config_of(context: typer.Context) -> Config:
    """Return the settings file that a command uses."""
    return context.obj if isinstance(context.obj, Config) else Config()


def _parameter(option: Option) -> Parameter:
    """Return the function parameter for an option, in the form that typer needs."""
    config: dict[str, Any] = {"is_eager": True, "callback": _configured} if option.name == "config" else {}
    forms = _tool_call_forms() if "{forms}" in option.help else ()
    flag = typer.Option(
        ... if option.required else option.default if option.default != () else None,
        *option.flags,
        metavar=option.metavar,
        min=option.least,
        max=option.most,
        help=option.help.format(forms=", ".join(forms)),
        **config,
    )
    annotation: Any = option.type
    if option.several:
        annotation = list[option.type] | None  # type: ignore[name-defined]
    elif option.default is None:
        annotation = option.type | None
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=flag, annotation=annotation)


CONFIG: Any = _parameter(OPTIONS["config"]).default
"""The option `--config`, for commands that have no parameter `settings`."""
TRUST: Any = _parameter(OPTIONS["trust"]).default
"""The option `--trust`, for commands that have no parameter `settings`."""


def command(run: Callable[..., None], *lines: str, name: str = "") -> typer.Typer:
    """Make a command that calls a function. Examples are added to its help page.

    The parameter `settings` of the function is replaced by all options that `Settings` declares for the
    command. Other parameters become arguments and options of this command only.
    """
    name = name or run.__name__.strip("_")
    parameters_of_run = signature(run, eval_str=True).parameters
    taken = list(taken_by(name)) if "settings" in parameters_of_run else []

    def call(context: typer.Context, **values: Any) -> None:
        if "settings" in parameters_of_run:
            given = frozenset(name for name in values if _source(context, name) == "COMMANDLINE")
            options = {option.name: values.pop(option.name) for option in taken}
            config = config_of(context)
            settings = Settings.of(options, file_headers=config.headers, given=given)
            if "trust" in options and not settings.trust:
                from_file = [option for option in taken if _source(context, option.name) == "DEFAULT_MAP"]
                demand_trust(Path(config.source), brought(settings, from_file))
            _demand_names(settings)  # the settings file is read here
            values["settings"] = settings
        if "context" in parameters_of_run:
            values["context"] = context
        with usage_errors():
            run(**values)

    parameters = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for parameter in parameters_of_run.values():
        if parameter.name == "settings":
            parameters += map(_parameter, taken)
        elif parameter.name != "context":
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__doc__ = run.__doc__
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(name, epilog=examples(*lines))(call)
    return app


def _source(context: typer.Context, parameter: str) -> str:
    """Return the source of a parameter's value, with the name that click gives this source."""
    source = context.get_parameter_source(parameter)
    return source.name if source is not None else ""


def examples(*lines: str) -> str:
    """Return examples for the end of a help page, one on each line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def has_desktop() -> bool:
    """True if the machine has a desktop.

    Without a desktop, a browser may open in the terminal, or not at all.
    """
    if not sys.stdout.isatty():
        return False
    return sys.platform in {"darwin", "win32"} or any(
        os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY")
    )


# Check before the run that the outputs can be written.


def writable(file: Path, option: str) -> Path:
    """Create the folder of an output file. Raises BadParameter if the file cannot be written."""
    if refusal := why_unwritable(file):
        raise typer.BadParameter(f"{option}: {refusal}")
    return file


def writable_folder(folder: Path, option: str) -> Path:
    """Create an output folder. Raises BadParameter if the folder cannot be written to."""
    if refusal := why_unwritable(folder / "capture"):
        raise typer.BadParameter(f"{option}: {refusal}")
    return folder


def empty_folder(folder: Path, option: str) -> Path:
    """Create an output folder. Raises BadParameter if the folder is not empty or cannot be written to."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise typer.BadParameter(f"{option} {folder} cannot be read: {system_says(error)}") from error
    if taken:
        raise typer.BadParameter(f"{option} {folder} is not an empty folder; name a new folder for each run")
    return writable_folder(folder, option)
