"""Tally files of twin comparisons, for `tokenwire merge`.

A tally file is gzipped JSON Lines, with a head and a line for each text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tokenwire import __version__
from tokenwire.report.tally_file import values_of, write_lines
from tokenwire.typed_table import typed
from tokenwire.usage_error import UsageError
from tokenwire_twin.twin import TwinTally, merged

_KIND = "twins"
"""The kind of file, as `commands.toml` names it. `tokenwire merge` finds this tool by the kind."""


def write_twins(tally: TwinTally, path: Path) -> None:
    """Write a tally file. Equal comparisons write equal bytes. Raises OSError."""
    fields = asdict(tally)
    texts = fields.pop("texts")
    fields["besides"] = [{**seen, "one": None, "other": None} for seen in fields["besides"]]
    head = {"kind": _KIND, "tokenwire": __version__, "texts": len(texts), "tally": fields}
    write_lines((head, *texts), path)


def merged_twins(paths: Sequence[Path]) -> TwinTally:
    """Read several tally files and merge them. Raises UsageError and OSError."""
    tallies = [_read(path) for path in paths]
    try:
        return merged(tallies)
    except ValueError as error:
        raise UsageError(f"the tallies cannot be merged: {error}") from error


def _read(path: Path) -> TwinTally:
    head, *texts = [*values_of(path)] or [{}]
    try:
        tally = typed(TwinTally, {**head["tally"], "texts": texts}, "its tally")
        whole = (head["kind"], head["tokenwire"], head["texts"]) == (_KIND, __version__, len(texts))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: {error}; write it again with `tokenwire twin --tally`") from error
    if not whole:
        raise UsageError(
            f"{path} is not a complete tally of twins by tokenwire {__version__}; write it again with --tally"
        )
    return tally
