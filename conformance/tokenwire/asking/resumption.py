"""Resumption (`--resume`) of an interrupted run: finished scenarios are read from the recording, and the
remaining ones are run.

The file `run.json` in the recording has the options, the target, and the finished scenarios of each dialect.
A scenario in which the server failed is run again, so that the failure and its cause are in the same run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenwire.asking.confirmation import asked_again
from tokenwire.asking.preflight import SCENARIO as PREFLIGHT
from tokenwire.asking.preflight import Preflight
from tokenwire.asking.scenario import Conversation
from tokenwire.asking.vital_signs import has_failed
from tokenwire.disk import write_whole
from tokenwire.usage_error import UsageError
from tokenwire.wire.capture import read_capture
from tokenwire.wire.exchange import ExchangeHead

NOTES = "run.json"


@dataclass
class Notes:
    """The contents of `run.json` in the folder of a recording."""

    folder: Path
    asked: Mapping[str, Any]
    """The target, and the options that decide which requests are sent."""
    server: Mapping[str, str] = field(default_factory=dict)
    """Name, version and model of the target; empty before preflight."""
    over: dict[str, dict[str, str]] = field(default_factory=dict)
    """Finished scenarios by `<dialect>/<scenario>`. The value has the skipped requests with the reasons."""

    @classmethod
    def of(cls, folder: Path, asked: Mapping[str, Any]) -> Notes:
        """Read the notes of the run to resume.

        Raises UsageError if they are missing, or if the run had other options.
        """
        path = folder / NOTES
        try:
            written = json.loads(path.read_text("utf-8"))
            notes = cls(folder, written["asked"], written["server"], written["over"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(
                f"{folder} cannot be resumed ({path}: {error!r}); name a folder that --record wrote"
            ) from error
        differing = [name for name, value in asked.items() if notes.asked.get(name) != value]
        if differing:
            name = differing[0]
            raise UsageError(
                f"{folder} was recorded with {name} {notes.asked.get(name)!r}, not {asked[name]!r}; give the "
                "same options, or record into a new folder"
            )
        return notes

    def begin(self, found: Preflight) -> None:
        """Write down the target. Raises UsageError if the earlier run had another target."""
        advertised = found.advertised
        server = {"name": advertised.name, "version": advertised.version, "model": found.model}
        if self.server and self.server != server:
            was, now = (" ".join(filter(None, server.values())) for server in (self.server, server))
            raise UsageError(
                f"{self.folder} was recorded from {was or 'an unnamed server'}, but {found.url} is "
                f"{now or 'an unnamed server'} now; record into a new folder"
            )
        self.server = server
        self._write()

    def finish(self, talk: Conversation) -> None:
        """Write down that a scenario is finished, unless the server failed in it."""
        name, transcript = talk.name_of(""), talk.transcript
        exchanges: list[ExchangeHead] = [stream.exchange for stream in transcript.streams]
        exchanges += [call.exchange for call in transcript.calls]
        pair = (talk.dialect.name, talk.scenario)
        if not any(
            (exchange.named_dialect, exchange.scenario) == pair and has_failed(exchange)
            for exchange in exchanges
        ):
            not_asked = transcript.not_asked
            self.over[name] = {label: not_asked[label] for label in not_asked if label.startswith(name)}
            self._write()

    def recall(self, talk: Conversation) -> bool:
        """Read the recorded answers of a scenario into the transcript; False if it was not finished."""
        name = talk.name_of("")
        if name not in self.over:
            return False
        files = (self.folder / name).glob("*.jsonl")
        exchanges = [exchange for file in files for exchange in read_capture(file)]
        for exchange in sorted(exchanges, key=lambda exchange: exchange.started):
            talk.recall(exchange)
        talk.transcript.not_asked |= self.over[name]
        return True

    def forget_the_rest(self) -> None:
        """Delete the recorded exchanges of unfinished scenarios, because these scenarios are run again."""
        kept = (f"{PREFLIGHT}/", *self.over) if self.server else ()
        for path in self.folder.rglob("*.jsonl"):
            name = path.relative_to(self.folder).with_suffix("").as_posix()
            if not name.startswith(kept) or asked_again(name):
                path.unlink()

    def _write(self) -> None:
        notes = {"asked": self.asked, "server": self.server, "over": self.over}
        # The disk may be full; without a note, a scenario is simply run again.
        with contextlib.suppress(OSError):
            write_whole(self.folder / NOTES, json.dumps(notes, indent=1) + "\n")
