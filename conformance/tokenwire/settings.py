"""`Settings`: the options that several commands share, that `tokenwire.toml` can set, or that are stored for
a later run. Each option is declared once, as a field. The flags and help of commands (`commands.command`),
the keys of the file (`config`) and the table in the documentation are generated from the fields. `planning`
uses the fields for the values that `--resume` compares and `tokenwire again` repeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Flag, StrEnum, auto
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tokenwire.ask import Budget
from tokenwire.wire.redaction import Headers


class _Role(Flag):
    """The uses of an option, in addition to its flag."""

    ASKS_LESS = auto()
    """The option skips requests.

    Reports name the option, because a run that skips requests cannot show that a known failure is fixed.
    """
    JUDGES_LESS = auto()
    """The option skips verdicts. Reports name the option."""
    RESUMED = auto()
    """`--resume` rejects a recording that was made with another value."""
    REMEMBERED = auto()
    """`tokenwire again` repeats the value of the last run."""
    REPRODUCED = auto()
    """Command lines that reports show include the value."""


ASKS_LESS, JUDGES_LESS, RESUMED, REMEMBERED, REPRODUCED = _Role
_NO_ROLE = _Role(0)


class Unasked(StrEnum):
    """The values that a settings file may set without the user's confirmation.

    These values are harmless: a run does not send, execute or write more because of them. Confirmation is
    needed because a checkout may contain the file, and requests contain the user's keys.
    """

    ALL = "every value"
    """The option makes a run send less, wait longer or judge less."""
    UP_TO_THE_DEFAULT = "up to the default"
    """Values above the default make a run send more."""
    NAMES = "names, but no file"
    """Names need no confirmation, because they only skip requests.

    A file needs confirmation, because it defines what is sent.
    """
    NONE = "none"
    """The option changes the bytes that are sent, a command that is executed, an address, or a file that is
    written.
    """


@dataclass(frozen=True)
class Option:
    """A field's description for the command line, `tokenwire.toml` and the documentation."""

    name: str
    """The name of the field."""
    type: type
    """The type of the value, or of each value if there are several."""
    several: bool
    default: Any
    commands: tuple[str, ...]
    """The names of the commands that accept the option."""
    metavar: str | None
    help: str
    flags: tuple[str, ...]
    least: float | None = None
    """The lower bound of a number. An option for a number has a lower and an upper bound."""
    most: float | None = None
    names: str = ""
    """The kind of names that the option accepts, such as scenarios. Empty for any text."""
    toml: str = ""
    """An example line for `tokenwire.toml`, with the command's table if it has one. Empty if files cannot set
    the option.
    """
    unasked: Unasked | None = None
    """The values that a file may set without confirmation. None if the field is not an option of files."""
    roles: _Role = _NO_ROLE
    required: bool = False
    but: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Attributes of the option that have another value for single commands, by command name."""

    def of(self, command: str) -> Option:
        """Return the option with the attributes that one command gives it."""
        return replace(self, **self.but.get(command, {}))

    @property
    def key(self) -> str:
        return self.toml.partition(" = ")[0]

    @property
    def example(self) -> str:
        """The example value in TOML."""
        return self.toml.partition(" = ")[2]

    def names_file(self, name: str) -> bool:
        """True if a value is the path of a dialect's file, and not the name of a dialect."""
        return self.names == "dialect" and name.endswith((".yaml", ".yml"))

    def needs_trust(self, value: Any) -> bool:
        """True if a file may set this value only with the user's confirmation."""
        if value == self.default:
            return False
        match self.unasked:
            case Unasked.ALL:
                return False
            case Unasked.UP_TO_THE_DEFAULT:
                in_order = self.default.covers(value) if isinstance(value, Budget) else value <= self.default
                return not in_order
            case Unasked.NAMES:
                return any(map(self.names_file, value))
        return True

    def typed(self, value: Any) -> Any:
        """Convert a value from click, TOML or JSON to the type of the field."""
        if self.several:
            return tuple(value)
        return self.type(value) if issubclass(self.type, (Path, StrEnum)) else value


def _option(
    commands: str, help_text: str, *, metavar: str | None = None, default: Any = None, **rest: Any
) -> Any:
    declared = {"commands": tuple(commands.split()), "help": help_text, "metavar": metavar, **rest}
    return field(default=default, metadata=declared)


_text = partial(_option, metavar="NAME", default="")
_names = partial(_option, metavar="NAME", default=())
_switch = partial(_option, default=False)
_count = partial(_option, metavar="N", least=1, most=10**9)
_seconds = partial(_option, metavar="SECONDS", least=0.1, most=604_800)
"""An option for a number of seconds, up to a week."""
_file = partial(_option, metavar="FILE")
_folder = partial(_option, metavar="DIR")

_ASK = "check record compare"
_REACH = f"{_ASK} twin"
_RUN = "check record"
_JUDGE = "check replay"
_REPORT = "check replay merge"
_LESS = ASKS_LESS | RESUMED
_HOW = RESUMED | REMEMBERED | REPRODUCED


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a command.

    Values on the command line have priority over values in the settings file, and those have priority over
    defaults.
    """

    config: Path | None = _file(
        f"{_REACH} replay merge watch inspect",
        "Read settings from this file, not from the nearest tokenwire.toml or pyproject.toml.",
    )
    trust: bool = _switch(
        f"{_REACH} watch inspect",
        "Trust the settings file: do not ask before it sends, executes or writes something.",
    )
    target: str = _text(
        f"{_RUN} init watch again inspect",
        "Base URL of the server.",
        metavar="URL",
        required=True,
        toml='target = "http://127.0.0.1:30000"',
        unasked=Unasked.NONE,
        but={
            "watch": {"help": "Base URL of the server behind the proxy."},
            "again": {"help": "Base URL of the server. Default: that of the last run.", "required": False},
            "check": {"help": "Base URL of the server; required without --engine.", "required": False},
        },
    )
    engine: str = _text(
        "check",
        "Start this front end of vLLM or SGLang over Tokenwire's own engine, check it, and stop both.",
        metavar="COMMAND",
        toml='engine = "vllm-rs serve"',
        unasked=Unasked.NONE,
    )
    header: tuple[str, ...] = _names(
        f"{_REACH} init again inspect",
        "Header for every request. A value may be an environment variable: env:NAME. Repeatable.",
        metavar="'NAME: VALUE'",
        toml='headers = { Authorization = "Bearer env:MY_KEY" }',
        unasked=Unasked.NONE,
        roles=RESUMED | REPRODUCED,
    )
    dialect: tuple[str, ...] = _names(
        f"{_REACH} replay inspect",
        "Use only this dialect, not all that the server supports: a name, or a YAML file. Repeatable.",
        but={"replay": {"help": "Also parse answers by the dialect in this YAML file. Repeatable."}},
        names="dialect",
        toml='dialects = ["sglang-generate"]',
        unasked=Unasked.NAMES,
        roles=_HOW | ASKS_LESS,
    )
    declare: tuple[str, ...] = _names(
        "check",
        "Declare a capability: if the server turns out to lack it, that is a violation. Repeatable.",
        names="capability",
        toml='capabilities = ["logprobs"]',
        unasked=Unasked.NONE,
        roles=REMEMBERED | REPRODUCED,
    )
    model: str = _text(
        f"{_REACH} init inspect",
        "Model to request. Default: the first one that the server lists.",
        toml='model = "my-model"',
        unasked=Unasked.NONE,
        roles=_HOW,
    )
    worker: str = _text(
        f"{_RUN} inspect",
        "Base URL of the server behind a gateway. It gets the same requests as the target.",
        metavar="URL",
        toml='worker = "http://127.0.0.1:30001"',
        unasked=Unasked.NONE,
        roles=_HOW,
    )
    twin: str = _text(
        "check inspect",
        "Base URL of another deployment. Serving a different model than the target is a violation.",
        metavar="URL",
        toml='twin = "http://127.0.0.1:30001"',
        unasked=Unasked.NONE,
        but={
            "inspect": {"help": "Base URL of another server to compare with. Requests may be sent to both."}
        },
    )
    channels: str = _text(
        "check",
        "Format of the model's tool calls: {forms}. Default: detected.",
        metavar="FORM",
        roles=_HOW,
    )
    scenario: tuple[str, ...] = _names(
        _ASK, "Run only this scenario. Repeatable.", names="scenario", roles=_LESS
    )
    scenario_file: tuple[str, ...] = _names(
        _ASK,
        "Run only the scenario in this YAML file. Repeatable.",
        metavar="FILE",
        roles=_HOW | ASKS_LESS,
    )
    without: tuple[str, ...] = _names(
        _ASK,
        "Skip this scenario. `tokenwire list scenarios` lists all. Repeatable.",
        names="scenario",
        toml='without = ["crowd"]',
        unasked=Unasked.ALL,
        roles=_LESS | REMEMBERED,
    )
    gentle: bool = _switch(
        _ASK,
        "Skip bursts, and requests that are known to crash servers. For a server that others use.",
        toml="gentle = true",
        unasked=Unasked.ALL,
        roles=_LESS | REMEMBERED,
    )
    budget: Budget = _option(
        _ASK,
        "Amount of requests: quick (the essentials), standard, or soak (all, in many variations).",
        default=Budget.STANDARD,
        toml='budget = "standard"',
        unasked=Unasked.UP_TO_THE_DEFAULT,
        roles=_HOW,
        but={"compare": {"default": Budget.QUICK}},
    )
    explore: int = _count(
        "check", "Also send N random requests.", default=0, least=0, most=10**6, roles=RESUMED
    )
    seed: int = _count(
        "check", "Random seed for --explore.", default=0, least=0, most=2**63 - 1, roles=RESUMED
    )
    timeout: float = _seconds(
        f"{_REACH} init inspect",
        "Time limit for one exchange, in seconds.",
        default=60.0,
        toml="timeout = 60",
        unasked=Unasked.ALL,
        roles=REMEMBERED,
    )
    max_concurrency: int = _count(
        f"{_REACH} inspect",
        "Maximum number of concurrent requests.",
        default=16,
        most=10**4,
        toml="max-concurrency = 16",
        unasked=Unasked.UP_TO_THE_DEFAULT,
        roles=REMEMBERED,
    )
    max_tokens: int | None = _count(
        _REACH,
        "Maximum number of output tokens in total.",
        most=10**12,
        toml="max-tokens = 200000",
        unasked=Unasked.ALL,
        roles=_LESS | REMEMBERED,
    )
    max_requests: int | None = _count(
        _REACH,
        "Maximum number of requests in total, including the preflight, probes and retries.",
        toml="max-requests = 3000",
        unasked=Unasked.ALL,
        roles=_LESS | REMEMBERED,
    )
    price: str = _text(
        _REACH,
        "Price of a million prompt tokens, and of a million output tokens.",
        metavar="IN,OUT",
        toml='price = "0.5,1.5"',
        unasked=Unasked.NONE,
        roles=REMEMBERED,
    )
    max_cost: float | None = _count(
        _REACH,
        "Maximum cost in total, by --price.",
        metavar="X",
        least=0,
        toml="max-cost = 2.5",
        unasked=Unasked.ALL,
        roles=_LESS | REMEMBERED,
    )
    rate: float | None = _count(
        _REACH,
        "Maximum number of requests per second.",
        least=0.001,
        most=10**6,
        toml="rate = 10",
        unasked=Unasked.ALL,
        roles=REMEMBERED,
    )
    restart: str = _text(
        _RUN,
        "Shell command that restarts the server if it dies. The run goes on when it answers again.",
        metavar="COMMAND",
        toml='restart = "systemctl restart my-server"',
        unasked=Unasked.NONE,
        roles=REMEMBERED,
    )
    wait: float | None = _seconds(
        _RUN,
        "If the server dies, wait up to this many seconds for it to return.",
        toml="wait = 300",
        unasked=Unasked.NONE,
        roles=REMEMBERED,
    )
    tokenizer: Path | None = _folder(
        f"{_ASK} replay inspect",
        "Compare text with ids by DIR/tokenizer.json, not by the server's own detokenize endpoint.",
        toml='tokenizer = "models/mine"',
        unasked=Unasked.NONE,
        roles=REMEMBERED,
    )
    profile: tuple[str, ...] = _names(
        f"{_JUDGE} watch",
        "Judge only the requirements of this profile. `tokenwire list profiles` lists all. Repeatable.",
        names="profile",
        toml='profiles = ["core"]',
        unasked=Unasked.ALL,
        roles=JUDGES_LESS,
    )
    requirement: tuple[str, ...] = _names(
        _JUDGE,
        "Judge only this requirement, whatever the profile. Repeatable.",
        metavar="ID",
        names="requirement",
        roles=JUDGES_LESS,
    )
    keyword: str = _text(
        _JUDGE,
        "Judge only what matches this expression, as in pytest.",
        metavar="EXPR",
        flags=("-k",),
        roles=JUDGES_LESS,
    )
    stop_at_first: bool = _switch(
        _JUDGE, "Stop at the first violation, as in pytest.", flags=("-x",), roles=JUDGES_LESS
    )
    last_failed: bool = _switch(
        _JUDGE, "Judge only what failed in the last run, as in pytest.", flags=("--lf",), roles=JUDGES_LESS
    )
    judge_limit: float = _seconds(
        f"{_JUDGE} watch inspect",
        "Processor seconds for one check of one exchange. More are a HARNESS_ERROR.",
        default=60.0,
        toml="judge-limit = 60",
        unasked=Unasked.ALL,
        but={
            "watch": {"help": "Seconds for judging one exchange. If it takes longer, it is counted as a gap."}
        },
    )
    baseline: Path | None = _file(
        _REPORT,
        "Tolerate the known failures in this file, which `tokenwire baseline update` writes.",
        toml='baseline = "tokenwire-baseline.toml"',
        unasked=Unasked.ALL,
    )
    json: Path | None = _file(
        f"{_REPORT} compare twin",
        "Write the report as JSON.",
        but={name: {"help": "Write the comparison as JSON."} for name in ("compare", "twin")},
    )
    junit: Path | None = _file(
        f"{_REPORT} compare",
        "Write the report as JUnit XML.",
        but={"compare": {"help": "Write the differences as JUnit XML."}},
    )
    html: Path | None = _file(f"{_REPORT} twin", "Write the report as one HTML page.")
    sarif: Path | None = _file(_REPORT, "Write the report as SARIF.")
    badge: Path | None = _file(_REPORT, "Write the JSON for a badge, as badge servers read it.")
    trace: Path | None = _file(_JUDGE, "Write the run as a trace, which ui.perfetto.dev can show.")
    report: Path | None = _folder(_REPORT, "Write the report into this folder in every format.")
    tally: Path | None = _file(
        "replay merge twin", "Write the result as a part that `tokenwire merge` can combine with others."
    )
    keep_failures: bool = _switch(
        "check",
        "Store the failures in the user's state folder, for `tokenwire again`.",
        default=True,
        flags=("--keep/--no-keep",),
        toml="keep-failures = false",
        unasked=Unasked.ALL,
    )
    listen: str = _text(
        "watch",
        "Address at which clients connect. Port 0 is any free port.",
        metavar="HOST:PORT",
        required=True,
        toml='watch.listen = "127.0.0.1:8000"',
        unasked=Unasked.NONE,
    )
    admin: str = _text(
        "watch",
        "Address of the live page and of /metrics.",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        toml='watch.admin = "127.0.0.1:9464"',
        unasked=Unasked.NONE,
    )
    admin_host: tuple[str, ...] = _names(
        "watch",
        "Host name under which --admin may be reached, besides its address and localhost. Repeatable.",
        metavar="HOST",
        toml='watch.admin-hosts = ["watcher.internal"]',
        unasked=Unasked.NONE,
    )
    record: Path | None = _folder(
        "check watch twin",
        "Write every exchange into this folder as it arrives.",
        toml='watch.record = "violations"',
        unasked=Unasked.NONE,
        but={
            "watch": {"help": "Write violating exchanges into this folder."},
            "twin": {
                "help": "Write the exchanges into this folder: those with A into a/, those with B into b/."
            },
        },
    )
    sample: float = _count(
        "watch",
        "Share of the exchanges to judge, such as 0.1. The others only pass through the proxy.",
        metavar="RATE",
        default=1.0,
        least=0,
        most=1,
        toml="watch.sample = 0.1",
        unasked=Unasked.ALL,
    )
    record_cap: int = _count(
        "watch",
        "Maximum size of the --record folder in MiB. The oldest exchanges are deleted.",
        metavar="MIB",
        default=256,
        most=2**20,
        toml="watch.record-cap = 256",
        unasked=Unasked.NONE,
    )
    drain: float = _seconds(
        "watch",
        "Seconds to go on judging before the exit.",
        default=10.0,
        least=0,
        toml="watch.drain = 10",
        unasked=Unasked.ALL,
    )
    verbose: bool = _switch(
        f"{_ASK} replay merge init again demo torture",
        "Show every requirement with its reason, and each exchange when it ends.",
        flags=("-v", "--verbose"),
    )
    quiet: bool = _switch(
        f"{_ASK} replay merge init again watch demo torture",
        "Print only failures and the last line.",
        flags=("-q", "--quiet"),
        but={"watch": {"help": "Do not print violations as they occur."}},
    )

    file_headers: Headers = field(default=(), repr=False)
    """The headers in the file. `--header` replaces only headers with the same name."""
    given: frozenset[str] = frozenset()
    """The names of the parameters that were given on the command line."""

    @classmethod
    def of(cls, values: Mapping[str, Any], **rest: Any) -> Settings:
        """Build settings from values of click, TOML or JSON, by field name. None means the default.

        Unknown names are ignored.
        """
        known = {name: value for name, value in values.items() if name in OPTIONS and value is not None}
        return cls(**{name: OPTIONS[name].typed(value) for name, value in known.items()}, **rest)

    @property
    def verbosity(self) -> int:
        return self.verbose - self.quiet

    def narrowed_by(self, roles: _Role) -> tuple[str, ...]:
        """Return the flags with these roles that were given, with their values, as reports show them."""
        return tuple(self._written(option) for option in having(roles) if option.name in self.given)

    def _written(self, option: Option) -> str:
        value = getattr(self, option.name)
        values = sorted(value) if isinstance(value, tuple) else () if value is True else (value,)
        return " ".join((option.flags[0], *map(str, values)))

    def values(self, role: _Role) -> dict[str, Any]:
        """Return the values of all options with a role, by field name."""
        return {option.name: getattr(self, option.name) for option in having(role)}


def _options() -> Iterator[Option]:
    types = get_type_hints(Settings)
    for declaration in fields(Settings):
        if not declaration.metadata:
            continue
        name, hint = declaration.name, types[declaration.name]
        several = hint == tuple[str, ...]
        # `X | None` is an option of type X without a default.
        (kind,) = {str} if several else {*(get_args(hint) or (hint,))} - {type(None)}
        declared = {"flags": (f"--{name.replace('_', '-')}",), **declaration.metadata}
        yield Option(name=name, type=kind, several=several, default=declaration.default, **declared)


OPTIONS = {option.name: option for option in _options()}
"""The options, by the names of their fields."""


def having(roles: _Role) -> Iterator[Option]:
    """Return the options that have one of these roles."""
    return (option for option in OPTIONS.values() if option.roles & roles)


def taken_by(command: str) -> Iterator[Option]:
    """Return the options that a command accepts, with the attributes that this command gives them."""
    return (option.of(command) for option in OPTIONS.values() if command in option.commands)
