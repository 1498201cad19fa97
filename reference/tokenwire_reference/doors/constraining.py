"""Compiles constraints before an engine gets the requests: once for each grammar text, within limits of time
and memory.

First, a separate process tries to compile a grammar (`extras.grammar_trial`). The process is ended if it
exceeds a limit of CPU time or memory, or if the client disconnects. A grammar within the limits is then
compiled in the server, on a thread. Compiled grammars and refusals are cached.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tokenwire_reference.core.request import Request
from tokenwire_reference.core.tokenizer import Tokenizer
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.sessions import Latest
from tokenwire_reference.extras import grammar_trial
from tokenwire_reference.extras.constraints import Compiled, Grammar, OfModel
from tokenwire_reference.extras.thinking import constraint_of_text
from tokenwire_reference.running.trials import TrialError, Trials
from tokenwire_reference.server_args import ServerArgs

if TYPE_CHECKING:
    from tokenwire_reference.core.model import Model

MOST_CONSTRAINTS = 64
"""The maximum number of different constraints in one call."""
MOST_KEPT_BYTES = 256 << 20
"""The maximum size of the cache of compiled grammars, in bytes."""
MOST_BYTES = 1 << 30
"""The maximum size of all compiled grammars, in bytes, including the grammars of running requests."""
_REFUSAL_BYTES = 4096
_PROCESSES = max(1, min(4, (os.cpu_count() or 2) // 2))


@dataclass(frozen=True)
class _Refused:
    """The reason why a grammar is refused."""

    words: str


class _Job:
    """The compilation of a grammar, which several requests may wait for."""

    def __init__(self, task: asyncio.Task[Compiled | _Refused]) -> None:
        self.task = task
        self.waiting = 0


class Constraining:
    """Compiles the grammars of one server, on the event loop."""

    def __init__(self, args: ServerArgs) -> None:
        self._args = args
        self._kept: Latest[bytes, Compiled | _Refused] = Latest(MOST_KEPT_BYTES, _size)
        self._alive: WeakSet[Compiled] = WeakSet()
        """All compiled grammars that are still referenced."""
        self._jobs: dict[bytes, _Job] = {}
        self._trials: Trials | None = None

    def close(self) -> None:
        """End the processes that try grammars."""
        if self._trials is not None:
            self._trials.close()

    async def prepare(self, requests: Sequence[Request], tokenizer: Tokenizer | None, model: Model) -> None:
        """Compile the constraints of the requests.

        Cancelling stops the compilation. Raises RefusalError if a constraint is not supported, or costs too
        much time or memory.
        """
        held = (constraint_of_text(request.sampling.constraint) for request in requests)
        grammars = {id(grammar): grammar for grammar in held if grammar is not None}
        by_source: dict[bytes, list[Grammar]] = {}
        for grammar in grammars.values():
            assert isinstance(grammar, Grammar), "doors make no other"
            by_source.setdefault(sha256(grammar.source.encode()).digest(), []).append(grammar)
        if len(by_source) > MOST_CONSTRAINTS:
            field = next(iter(by_source.values()))[0].field
            raise _refused(
                field,
                f"{len(by_source)} different constraints are in one request; send at most {MOST_CONSTRAINTS}",
            )
        for key, (grammar, *equal) in by_source.items():
            assert tokenizer is not None, "constraints without a tokenizer are refused"
            of_model = OfModel(tokenizer, model.vocab_size, model.eos_token_ids)
            compiled = await self._compiled(key, grammar, of_model)
            if isinstance(compiled, _Refused):
                raise _refused(grammar.field, compiled.words)
            for same in (grammar, *equal):
                same.use(compiled)

    async def _compiled(self, key: bytes, grammar: Grammar, of_model: OfModel) -> Compiled | _Refused:
        if (known := self._kept.get(key)) is not None:
            return known
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(asyncio.create_task(self._compile(key, grammar, of_model)))
        job.waiting += 1
        try:
            return await asyncio.shield(job.task)
        finally:
            job.waiting -= 1
            if not job.waiting:
                del self._jobs[key]
                job.task.cancel()

    async def _compile(self, key: bytes, grammar: Grammar, of_model: OfModel) -> Compiled | _Refused:
        taken = sum(compiled.bytes for compiled in self._alive)
        if taken > MOST_BYTES:
            raise RefusalError(
                f"{grammar.field}: the constraints of requests under way take {taken >> 20} MiB of at most "
                f"{MOST_BYTES >> 20}; try again later",
                type="503",
                status=503,
                param=grammar.field,
            )
        outcome: Compiled | _Refused
        tried = await self._tried(grammar, of_model)
        if isinstance(tried, _Refused):
            outcome = tried
        else:
            outcome = await asyncio.to_thread(of_model.compile, grammar, tried)
            self._alive.add(outcome)
        self._kept.put(key, outcome)
        return outcome

    async def _tried(self, grammar: Grammar, of_model: OfModel) -> int | _Refused:
        """Return the size of a compiled grammar in bytes, or the reason for its refusal.

        Raises RefusalError if the trial ended without a result.
        """
        seconds, megabytes = self._args.constraint_seconds, self._args.constraint_megabytes
        if self._trials is None:

            def greeting() -> bytes:
                return of_model.vocabulary.for_trials(seconds, megabytes << 20)

            self._trials = Trials(grammar_trial.__name__, greeting, _PROCESSES)
        try:
            tried: dict[str, Any] = json.loads(await self._trials.run(json.dumps(grammar.source).encode()))
        except TrialError as error:
            words = f"{grammar.field}: the constraint was not compiled: {error}; try again"
            raise RefusalError(words, type="500", status=500, param=grammar.field) from error
        match tried:
            case {"ended": "seconds"}:
                return _Refused(
                    f"it takes more than {seconds:g} s of CPU time (--constraint-seconds); simplify it"
                )
            case {"ended": "bytes"}:
                return _Refused(f"it takes more than {megabytes} MiB (--constraint-megabytes); simplify it")
            case {"ended": str(how)}:
                return _Refused(f"its compiler ended ({how}); simplify it")
            case {"error": str(words)}:
                return _Refused(words)
        size: int = tried["bytes"]
        return size


def _refused(field: str, words: str) -> RefusalError:
    return RefusalError(f"The constraint cannot be kept: {field}: {words}", param=field)


def _size(compiled: Compiled | _Refused) -> int:
    return _REFUSAL_BYTES + (compiled.bytes if isinstance(compiled, Compiled) else 0)
