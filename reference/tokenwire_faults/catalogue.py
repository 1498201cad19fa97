"""What is known of each fault: the bug it imitates, and what it should turn red."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import tokenwire_faults as faults
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire_faults.fault import Fault

CUMULATIVE, INCREMENTAL, WHOLE = "cumulative", "incremental", "whole"
STREAMED = (CUMULATIVE, INCREMENTAL)
EVERYWHERE = (*STREAMED, WHOLE)


PRIMITIVES = {
    "X01": "of the outputs that wait, only the last is sent",
    "X02": "a piece is lost or blank: the first, one in the middle, that of the finish",
    "X03": "a piece is sent twice",
    "X04": "one field travels in the other delivery mode",
    "X05": "a cursor is applied twice, or to all choices",
    "X06": "a per-token array has entries too few or too many at the end",
    "X07": "a field that was asked for is null or absent in one branch",
    "X08": "logprobs are those of another position, rank or distribution",
    "X09": "metadata of another request, or shifted by one",
    "X10": "each chunk is decoded alone, or leniently",
    "X11": "text is held back never, for ever, or without its ids",
    "X12": "stops are sought in ids, in the tail only, or cut in one field only",
    "X13": "several tokens are accepted in one step",
    "X14": "a finish reason is absent, doubled or wrong",
    "X15": "a stream ends without its mark, stalls, or fails on the way",
    "X16": "bytes that are no event stream, or no strict JSON",
    "X17": "usage is counted wrong",
    "X18": "the prompt is another than was sent",
    "X19": "a part of a batch loses a flag, or its index",
    "X20": "request ids are confused",
    "X21": "an abort ends nothing, too much, or in another form",
    "X22": "a preempted request begins anew in part",
    "X23": "ids that are hard to show: bytes, special tokens, ends",
    "X24": "values beyond their range are used",
    "X25": "a gateway writes an answer anew by a shape of its own",
    "X26": "the cost of an event grows with what was sent",
    "X27": "a parser of the text loses what stands beside its markers",
    "X28": "pieces of the prefill, or the cached part of it, show",
}
"""The kinds of injection."""


@dataclass(frozen=True)
class KnownFault:
    """One entry of the catalogue."""

    name: str
    make: type[Fault]
    primitive: str
    """The kind of injection, a key of `PRIMITIVES`."""
    upstream: tuple[str, ...]
    """The threads that tell of the bug."""
    shows_in: tuple[str, ...]
    """The deliveries in which a client sees it. Chat streams are incremental, however `/generate` streams."""
    server: tuple[str, ...]
    """Flags of the server without which it does not show."""
    unseen: str
    """Why no requirement is violated, where none is."""
    ends_the_server: bool
    """The server answers no request any more once the fault has shown."""

    @property
    def kind(self) -> str:
        """The kind of injection, in words."""
        return PRIMITIVES[self.primitive]

    @property
    def kills(self) -> tuple[str, ...]:
        """The requirements of the specification that name it: those that it violates."""
        return _kills().get(self.name, ())

    @property
    def room(self) -> str:
        """The module that it stands in, named like the room where the bug lived."""
        return self.make.__module__.rpartition(".")[2]

    @property
    def does(self) -> str:
        """What it does, in a sentence or two."""
        return " ".join((self.make.__doc__ or "").split())


_catalogue: dict[str, KnownFault] = {}


def fault(
    name: str,
    primitive: str,
    *,
    upstream: tuple[str, ...] = (),
    shows_in: tuple[str, ...] = EVERYWHERE,
    server: tuple[str, ...] = (),
    unseen: str = "",
    ends_the_server: bool = False,
) -> Callable[[type[Fault]], type[Fault]]:
    """Enter a fault into the catalogue. Its docstring says what the bug did.

    Raises ValueError for a name that is taken, and for a kind that there is not.
    """

    def enter(make: type[Fault]) -> type[Fault]:
        if name in _catalogue:
            raise ValueError(f"fault {name!r} stands twice; rename one")
        if primitive not in PRIMITIVES:
            raise ValueError(
                f"fault {name!r} is of the kind {primitive!r}; the kinds are {', '.join(PRIMITIVES)}"
            )
        _catalogue[name] = KnownFault(
            name, make, primitive, upstream, shows_in, server, unseen, ends_the_server
        )
        return make

    return enter


@cache
def _kills() -> dict[str, tuple[str, ...]]:
    """The requirements that name each fault, in the order of the specification."""
    named: dict[str, list[str]] = {}
    for chapter in read_yaml(spec_root() / "chapters.yaml"):
        rows = read_yaml(spec_root() / "requirements" / f"{chapter}.yaml")
        for row in rows["requirements"]:
            for name in row.get("kills", ()):
                named.setdefault(name, []).append(row["id"])
    return {name: tuple(ids) for name, ids in named.items()}


@cache
def load_faults() -> dict[str, KnownFault]:
    """All faults by name, room by room."""
    for module in pkgutil.iter_modules(faults.__path__):
        importlib.import_module(f"{faults.__name__}.{module.name}")
    return dict(sorted(_catalogue.items(), key=lambda item: (item[1].room, item[0])))


def make_fault(name: str) -> Fault:
    """A fault for one request. Raises ValueError, with what was probably meant, for an unknown name."""
    known = load_faults()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`tokenwire-reference faults` lists them all"
        raise ValueError(f"x-tokenwire-fault is {name!r}, and there is no such fault; {hint}")
    return known[name].make()
