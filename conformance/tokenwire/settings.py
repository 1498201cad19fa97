"""`Settings`: options shared by commands, set in `tokenwire.toml`, or kept for a later run.

A field declares its option once. The flags and help of commands (`commands.command`), the keys of the file
(`config`), the values that `--resume` compares and `tokenwire again` repeats (`planning`), and the table in
the documentation are made from the fields.
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
    """The uses of an option other than as a flag of a command."""

    ASKS_LESS = auto()
    """It skips requests. Reports name it, because the run cannot show that a known failure is fixed."""
    JUDGES_LESS = auto()
    """It skips verdicts, so reports name it."""
    RESUMED = auto()
    """`--resume` refuses a recording made with another value."""
    REMEMBERED = auto()
    """`tokenwire again` repeats the value of the last run."""
    REPRODUCED = auto()
    """Command lines in reports repeat it."""


ASKS_LESS, JUDGES_LESS, RESUMED, REMEMBERED, REPRODUCED = _Role
_NO_ROLE = _Role(0)


class Unasked(StrEnum):
    """The values that a settings file may give an option without the user's trust.

    They are harmless: they do not make a run send, execute or write anything more. A checkout may bring the
    file, and the requests carry the user's keys.
    """

    ALL = "every value"
    """The option makes a run send less, wait longer or judge less."""
    UP_TO_THE_DEFAULT = "up to the default"
    """Greater values than the default make a run send more."""
    NAMES = "names, but no file"
    """A name skips requests; a file defines what is sent."""
    NONE = "none"
    """The option changes a byte on the wire, an executed command, an address, or a written file."""


@dataclass(frozen=True)
class Option:
    """The description of a field for the command line, `tokenwire.toml` and the documentation."""

    name: str
    """The name of the field."""
    type: type
    """The type of a value; of each value if there are several."""
    several: bool
    default: Any
    commands: tuple[str, ...]
    """The commands that accept it."""
    metavar: str | None
    help: str
    flags: tuple[str, ...]
    least: float | None = None
    """The lower bound of a number, which has both bounds."""
    most: float | None = None
    names: str = ""
    """The kind of names that it accepts; empty for any text."""
    toml: str = ""
    """An example line of `tokenwire.toml`, in its command's table if it has one; empty if files cannot set
    it."""
    unasked: Unasked | None = None
    """The values that an untrusted file may set. None for an option that is not harmless."""
    roles: _Role = _NO_ROLE
    required: bool = False
    but: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changed attributes of the option for single commands, by command name."""

    def of(self, command: str) -> Option:
        """Return the option as one command accepts it."""
        return replace(self, **self.but.get(command, {}))

    @property
    def key(self) -> str:
        return self.toml.partition(" = ")[0]

    @property
    def example(self) -> str:
        """The example value, as TOML."""
        return self.toml.partition(" = ")[2]

    def names_file(self, name: str) -> bool:
        """True if a value names a dialect's file and not a dialect."""
        return self.names == "dialect" and name.endswith((".yaml", ".yml"))

    def needs_trust(self, value: Any) -> bool:
        """True if a file may set this value only with the user's trust."""
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
        """Convert a value of click, TOML or JSON to the type of the field."""
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
"""An option for seconds, up to a week."""
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
    """Settings of a command: from the command line, or else from the file, or else defaults."""

    config: Path | None = _file(
        f"{_REACH} replay merge watch inspect",
        "Take settings from this file, not from the nearest tokenwire.toml or pyproject.toml.",
    )
    trust: bool = _switch(
        f"{_REACH} watch inspect",
        "Let the file of settings decide what is sent, run or written, and do not ask.",
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
            "again": {"help": "Ask this server, not the one of the last run.", "required": False},
            "check": {"help": "Base URL of the server; needed without --engine.", "required": False},
        },
    )
    engine: str = _text(
        "check",
        "Start this front end of vLLM or SGLang over an engine of known answers, check it, and stop both.",
        metavar="COMMAND",
        toml='engine = "vllm-rs serve"',
        unasked=Unasked.NONE,
    )
    header: tuple[str, ...] = _names(
        f"{_REACH} init again inspect",
        "Send this too; env:NAME in a value means an environment variable. Repeatable.",
        metavar="'NAME: VALUE'",
        toml='headers = { Authorization = "Bearer env:MY_KEY" }',
        unasked=Unasked.NONE,
        roles=RESUMED | REPRODUCED,
    )
    dialect: tuple[str, ...] = _names(
        f"{_REACH} replay inspect",
        "Ask only this dialect, not all that the server speaks: its name, or your own YAML file. Repeatable.",
        but={"replay": {"help": "Read answers by the dialect in this YAML file, too; repeatable."}},
        names="dialect",
        toml='dialects = ["sglang-generate"]',
        unasked=Unasked.NAMES,
        roles=_HOW | ASKS_LESS,
    )
    declare: tuple[str, ...] = _names(
        "check",
        "The server has this capability: not to show it is a violation. Repeatable.",
        names="capability",
        toml='capabilities = ["logprobs"]',
        unasked=Unasked.NONE,
        roles=REMEMBERED | REPRODUCED,
    )
    model: str = _text(
        f"{_REACH} init inspect",
        "Ask for this model, not for the first one listed.",
        toml='model = "my-model"',
        unasked=Unasked.NONE,
        roles=_HOW,
    )
    worker: str = _text(
        f"{_RUN} inspect",
        "The server behind the target, if that is a gateway: both are asked the same.",
        metavar="URL",
        toml='worker = "http://127.0.0.1:30001"',
        unasked=Unasked.NONE,
        roles=_HOW,
    )
    twin: str = _text(
        "check inspect",
        "Another deployment: tell, besides, whether both serve one model. The exit status says so, too.",
        metavar="URL",
        toml='twin = "http://127.0.0.1:30001"',
        unasked=Unasked.NONE,
        but={"inspect": {"help": "Another server, which should answer alike: requests may go to both."}},
    )
    channels: str = _text(
        "check",
        "How the model writes tool calls: {forms}. Detected by default.",
        metavar="FORM",
        roles=_HOW,
    )
    scenario: tuple[str, ...] = _names(
        _ASK, "Ask only this scenario; repeatable.", names="scenario", roles=_LESS
    )
    scenario_file: tuple[str, ...] = _names(
        _ASK,
        "Ask only the scenario in this YAML file; repeatable.",
        metavar="FILE",
        roles=_HOW | ASKS_LESS,
    )
    without: tuple[str, ...] = _names(
        _ASK,
        "Leave this scenario out; repeatable. `tokenwire list scenarios` names all.",
        names="scenario",
        toml='without = ["crowd"]',
        unasked=Unasked.ALL,
        roles=_LESS | REMEMBERED,
    )
    gentle: bool = _switch(
        _ASK,
        "Skip requests known to crash servers, and skip bursts: for a server that others use.",
        toml="gentle = true",
        unasked=Unasked.ALL,
        roles=_LESS | REMEMBERED,
    )
    budget: Budget = _option(
        _ASK,
        "How much to ask: quick (the essentials), standard, or soak (all of it, in many shapes).",
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
        "Seconds for one exchange.",
        default=60.0,
        toml="timeout = 60",
        unasked=Unasked.ALL,
        roles=REMEMBERED,
    )
    max_concurrency: int = _count(
        f"{_REACH} inspect",
        "Exchanges at a time.",
        default=16,
        most=10**4,
        toml="max-concurrency = 16",
        unasked=Unasked.UP_TO_THE_DEFAULT,
        roles=REMEMBERED,
    )
    max_tokens: int | None = _count(
        _REACH,
        "Output tokens to ask for, at most, in all.",
        most=10**12,
        toml="max-tokens = 200000",
        unasked=Unasked.ALL,
        roles=_LESS | REMEMBERED,
    )
    max_requests: int | None = _count(
        _REACH,
        "Requests to send, at most, in all: retries, probes and the first ones count, too.",
        toml="max-requests = 3000",
        unasked=Unasked.ALL,
        roles=_LESS | REMEMBERED,
    )
    price: str = _text(
        _REACH,
        "What a million prompt and output tokens cost.",
        metavar="IN,OUT",
        toml='price = "0.5,1.5"',
        unasked=Unasked.NONE,
        roles=REMEMBERED,
    )
    max_cost: float | None = _count(
        _REACH,
        "What all of it may cost by --price, at most.",
        metavar="X",
        least=0,
        toml="max-cost = 2.5",
        unasked=Unasked.ALL,
        roles=_LESS | REMEMBERED,
    )
    rate: float | None = _count(
        _REACH,
        "Requests in a second, at most.",
        least=0.001,
        most=10**6,
        toml="rate = 10",
        unasked=Unasked.ALL,
        roles=REMEMBERED,
    )
    restart: str = _text(
        _RUN,
        "Run this in a shell when the server died, and go on when it is back.",
        metavar="COMMAND",
        toml='restart = "systemctl restart my-server"',
        unasked=Unasked.NONE,
        roles=REMEMBERED,
    )
    wait: float | None = _seconds(
        _RUN,
        "If the server dies, wait up to N seconds for it to return.",
        toml="wait = 300",
        unasked=Unasked.NONE,
        roles=REMEMBERED,
    )
    tokenizer: Path | None = _folder(
        f"{_ASK} replay inspect",
        "Hold text against ids by DIR/tokenizer.json, not by what the server itself answers.",
        toml='tokenizer = "models/mine"',
        unasked=Unasked.NONE,
        roles=REMEMBERED,
    )
    profile: tuple[str, ...] = _names(
        f"{_JUDGE} watch",
        "Judge only what this profile holds; repeatable. `tokenwire list profiles` names all.",
        names="profile",
        toml='profiles = ["core"]',
        unasked=Unasked.ALL,
        roles=JUDGES_LESS,
    )
    requirement: tuple[str, ...] = _names(
        _JUDGE,
        "Judge only this, whatever the profile; repeatable.",
        metavar="ID",
        names="requirement",
        roles=JUDGES_LESS,
    )
    keyword: str = _text(
        _JUDGE, "Judge only what matches, as in pytest.", metavar="EXPR", flags=("-k",), roles=JUDGES_LESS
    )
    stop_at_first: bool = _switch(
        _JUDGE, "Stop at the first violation, as in pytest.", flags=("-x",), roles=JUDGES_LESS
    )
    last_failed: bool = _switch(
        _JUDGE, "Judge only what failed last time, as in pytest.", flags=("--lf",), roles=JUDGES_LESS
    )
    judge_limit: float = _seconds(
        f"{_JUDGE} watch inspect",
        "Processor seconds that one check may take for one exchange; beyond, it is a HARNESS_ERROR.",
        default=60.0,
        toml="judge-limit = 60",
        unasked=Unasked.ALL,
        but={"watch": {"help": "Seconds that one exchange may take to judge; beyond, it is a gap."}},
    )
    baseline: Path | None = _file(
        _REPORT,
        "Tolerate the failures that this file knows; `tokenwire baseline update` writes it.",
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
    html: Path | None = _file(f"{_REPORT} twin", "Write the report as one page.")
    sarif: Path | None = _file(_REPORT, "Write the report as SARIF.")
    badge: Path | None = _file(_REPORT, "Write the JSON of a badge.")
    trace: Path | None = _file(_JUDGE, "Write the run as a trace: open it at ui.perfetto.dev, or offline.")
    report: Path | None = _folder(_REPORT, "Write the report there in every form.")
    tally: Path | None = _file("replay merge twin", "Write what `tokenwire merge` makes one report of.")
    keep_failures: bool = _switch(
        "check",
        "Keep what failed in the user's state folder, for `tokenwire again`.",
        default=True,
        flags=("--keep/--no-keep",),
        toml="keep-failures = false",
        unasked=Unasked.ALL,
    )
    listen: str = _text(
        "watch",
        "Where clients connect; port 0 for any.",
        metavar="HOST:PORT",
        required=True,
        toml='watch.listen = "127.0.0.1:8000"',
        unasked=Unasked.NONE,
    )
    admin: str = _text(
        "watch",
        "Where the live page and /metrics are.",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        toml='watch.admin = "127.0.0.1:9464"',
        unasked=Unasked.NONE,
    )
    admin_host: tuple[str, ...] = _names(
        "watch",
        "Answer at --admin under this host name, too, besides its address and localhost. Repeatable.",
        metavar="HOST",
        toml='watch.admin-hosts = ["watcher.internal"]',
        unasked=Unasked.NONE,
    )
    record: Path | None = _folder(
        "check watch twin",
        "Write every exchange there as it arrives.",
        toml='watch.record = "violations"',
        unasked=Unasked.NONE,
        but={
            "watch": {"help": "Keep exchanges that violate there."},
            "twin": {"help": "Write the exchanges of both sides there, in the folders a and b."},
        },
    )
    sample: float = _count(
        "watch",
        "The share of the exchanges to judge, such as 0.1; the bytes of the others only go through.",
        metavar="RATE",
        default=1.0,
        least=0,
        most=1,
        toml="watch.sample = 0.1",
        unasked=Unasked.ALL,
    )
    record_cap: int = _count(
        "watch",
        "MiB that --record may take; the oldest go.",
        metavar="MIB",
        default=256,
        most=2**20,
        toml="watch.record-cap = 256",
        unasked=Unasked.NONE,
    )
    drain: float = _seconds(
        "watch",
        "On exit, keep judging this long.",
        default=10.0,
        least=0,
        toml="watch.drain = 10",
        unasked=Unasked.ALL,
    )
    verbose: bool = _switch(
        f"{_ASK} replay merge init again demo",
        "Show every requirement and reason, and each exchange as it ends.",
        flags=("-v", "--verbose"),
    )
    quiet: bool = _switch(
        f"{_ASK} replay merge init again watch",
        "Print only failures and the last line.",
        flags=("-q", "--quiet"),
        but={"watch": {"help": "Do not print violations as they come."}},
    )

    file_headers: Headers = field(default=(), repr=False)
    """Headers of the file. `--header` replaces only those of the same name."""
    given: frozenset[str] = frozenset()
    """Names of the parameters given on the command line."""

    @classmethod
    def of(cls, values: Mapping[str, Any], **rest: Any) -> Settings:
        """Build settings from values of click, TOML or JSON by field name; None leaves the default.

        Unknown names are ignored.
        """
        known = {name: value for name, value in values.items() if name in OPTIONS and value is not None}
        return cls(**{name: OPTIONS[name].typed(value) for name, value in known.items()}, **rest)

    @property
    def verbosity(self) -> int:
        return self.verbose - self.quiet

    def narrowed_by(self, roles: _Role) -> tuple[str, ...]:
        """Return the given flags of these roles with their values, as reports show them."""
        return tuple(self._written(option) for option in having(roles) if option.name in self.given)

    def _written(self, option: Option) -> str:
        value = getattr(self, option.name)
        values = sorted(value) if isinstance(value, tuple) else () if value is True else (value,)
        return " ".join((option.flags[0], *map(str, values)))

    def values(self, role: _Role) -> dict[str, Any]:
        """Return the values of all options of a role, by field name."""
        return {option.name: getattr(self, option.name) for option in having(role)}


def _options() -> Iterator[Option]:
    types = get_type_hints(Settings)
    for declaration in fields(Settings):
        if not declaration.metadata:
            continue
        name, hint = declaration.name, types[declaration.name]
        several = hint == tuple[str, ...]
        # `X | None` is an option of X that may be absent.
        (kind,) = {str} if several else {*(get_args(hint) or (hint,))} - {type(None)}
        declared = {"flags": (f"--{name.replace('_', '-')}",), **declaration.metadata}
        yield Option(name=name, type=kind, several=several, default=declaration.default, **declared)


OPTIONS = {option.name: option for option in _options()}
"""Options by the names of their fields."""


def having(roles: _Role) -> Iterator[Option]:
    """Return the options that have one of these roles."""
    return (option for option in OPTIONS.values() if option.roles & roles)


def taken_by(command: str) -> Iterator[Option]:
    """Return the options that a command accepts, with its own differences."""
    return (option.of(command) for option in OPTIONS.values() if command in option.commands)
