"""The same requests: compare the requests of all scenarios with recorded digests.

Scenarios send their requests to a stand-in for a server, which answers at once and only with the values that
scenarios read. This happens three times, with different budgets, in all dialects. Each request counts with
its name, its bytes, the way in which its answer is read, and the number of other running requests when it is
sent. A change of the way in which scenarios are written must not change a digest, or the commit that updates
the digests must list the requests that are new, gone or changed, with the reason.

    python -m proofs.same_requests                  compare, and print the scenarios that differ
    python -m proofs.same_requests stop             only scenarios whose names contain this text
    python -m proofs.same_requests --lines FILE     write the requests, to compare two checkouts with diff
    python -m proofs.same_requests --update         write the digests
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

from tokenwire.ask import Budget
from tokenwire.asking.rehearsal import Rehearsal
from tokenwire.asking.scenario import Conversation, Scenario, Transcript, load_scenarios
from tokenwire.asking.tap import SlowReader, Tap
from tokenwire.dialects.dialect import load_dialects
from tokenwire.parrot.encoding import encoder
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.speaker import Speaker
from tokenwire.parrot.vocabulary import Vocabulary, words_of
from tokenwire.record import BROKEN
from tokenwire.target.advertised import Advertised
from tokenwire.target.capability import WAITING_TIMEOUT, WEIGHT_UPDATES, WEIGHT_VERSIONS
from tokenwire.wire.exchange import Exchange, HttpRequest, Read

DIGESTS = Path(__file__).parent / "evidence" / "requests.json"
_TURNS = 5
"""The turns of the event loop before an answer, so that requests that are sent together run at
the same time.
"""
_LOADS = {"running": 4, "after": 2}
"""The number of running requests that the load endpoint returns, by the last part of the request's name; 0
for other names.
"""


class _Pieces:
    """A tokenizer for which every second id is a part of a character."""

    cleans_up = False

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,  # noqa: ARG002  # the tokenizer has no special tokens
        spaces_between_special_tokens: bool = True,  # noqa: ARG002  # the same
    ) -> str:
        return "".join(BROKEN if token % 2 else chr(97 + token % 26) for token in ids)


@dataclass(frozen=True)
class Circumstances:
    """Facts that scenarios know about a target before their first request."""

    budget: Budget
    advertised: Advertised
    parrot: bool = False
    tool_calls: str = ""
    tokenizer: _Pieces | None = None


def _speaker() -> Speaker:
    words = words_of(Vocabulary.BYTE_LEVEL)
    return Speaker(Parrot(len(words.pieces), 1024), words, encoder(Vocabulary.BYTE_LEVEL))


def circumstances() -> tuple[Circumstances, ...]:
    """Return a target without known facts, a target with many known facts, and a parrot."""
    return (
        Circumstances(Budget.QUICK, Advertised()),
        Circumstances(
            Budget.STANDARD,
            Advertised(
                context_length=2048,
                vocab_size=512,
                max_running_requests=6,
                stream_interval=2,
                dp_size=2,
                adapters=frozenset({"first", "second"}),
                weights="/weights",
            ),
            tool_calls="hermes",
            tokenizer=_Pieces(),
        ),
        Circumstances(Budget.SOAK, Advertised(context_length=4096), parrot=True, tool_calls="qwen3_xml"),
    )


@dataclass
class StandIn(Rehearsal):
    """A rehearsal that records its requests."""

    lines: list[str] = field(default_factory=list)
    """One line for each request, in the order of sending."""
    under_way: int = 0

    async def send(
        self,
        name: str,
        scenario: str,
        request: HttpRequest,
        *,
        slow_reader: SlowReader | None = None,
        tap: Tap | None = None,
        aside: bool = False,
    ) -> Exchange:
        """Record a request, and answer it."""
        how = f"slow={slow_reader} tap={tap is not None} beside={'any' if aside else self.under_way}"
        self.lines.append(f"{name} {how} {_written(request)}")
        self.under_way += 1
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.under_way -= 1
        exchange = await super().send(name, scenario, request, slow_reader=slow_reader, tap=tap, aside=aside)
        body = _load(name) if request.path == "/v1/loads" else None
        return exchange if body is None else replace(exchange, reads=(Read(0.0, body),))


def _load(name: str) -> bytes:
    live = _LOADS.get(name.rpartition("-")[2], 0)
    return json.dumps({"loads": [{"num_running_reqs": live, "num_waiting_reqs": 0}]}).encode()


def _written(request: HttpRequest) -> str:
    body = "" if request.body is None else json.dumps(request.body, sort_keys=True)
    raw = "" if request.raw_body is None else hashlib.sha256(request.raw_body).hexdigest()
    return f"{request.method} {request.path} {request.headers} {body}{raw}"


async def _run(scenario: Scenario, talk: Conversation) -> None:
    await scenario.run(talk)


def is_chosen(scenario: str, parts: Sequence[str]) -> bool:
    """Return True if the name of a scenario contains one of these texts, or if no text is given."""
    return not parts or any(part in scenario for part in parts)


def lines(known: Circumstances, parts: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield pairs of a scenario and a line, for each request that is sent and for each exchange that is not
    asked.
    """
    speaker = _speaker() if known.parrot else None
    for name, scenario in load_scenarios().items():
        if not is_chosen(name, parts):
            continue
        for dialect in load_dialects().values():
            if scenario.fits(dialect):
                sender, transcript = StandIn([dialect], 4096), Transcript(tokenizer=known.tokenizer)
                talk = Conversation(
                    name,
                    dialect,
                    sender,
                    known.advertised,
                    transcript,
                    budget=known.budget,
                    parrot=speaker,
                    tool_calls=known.tool_calls,
                    declared=frozenset({WEIGHT_UPDATES, WEIGHT_VERSIONS, WAITING_TIMEOUT}),
                    draw=Random(name),
                    to_worker=sender,
                )
                asyncio.run(_run(scenario, talk))
                yield from ((name, line) for line in sender.lines)
                for exchange, why in transcript.not_asked.items():
                    yield name, f"{exchange} is not asked: {why}"


def digests(known: Circumstances, parts: Sequence[str] = ()) -> dict[str, str]:
    """Count the lines of each scenario and budget, and compute their digest."""
    sent: dict[str, list[str]] = {}
    for scenario, line in lines(known, parts):
        sent.setdefault(f"{scenario} {known.budget}", []).append(line)
    return {
        name: f"{len(every)} {hashlib.sha256(chr(10).join(every).encode()).hexdigest()[:12]}"
        for name, every in sent.items()
    }


def read_digests() -> dict[str, str]:
    """Read the recorded digests. Raises OSError, ValueError."""
    written: dict[str, str] = json.loads(DIGESTS.read_text())
    return written


def updated(written: dict[str, str], now: dict[str, str], parts: Sequence[str] = ()) -> dict[str, str]:
    """Return the recorded digests with new ones for the chosen scenarios, and without those that are gone."""
    return {name: digest for name, digest in written.items() if not is_chosen(name, parts)} | now


def main() -> int:
    """Print the differences. Return 1 if there are differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--lines", type=Path, metavar="FILE")
    parser.add_argument("--update", action="store_true")
    asked = parser.parse_args()
    if asked.lines:
        every = (
            f"{known.budget} {line}\n" for known in circumstances() for _, line in lines(known, asked.parts)
        )
        asked.lines.write_text("".join(every), encoding="utf-8")
        return 0
    with ProcessPoolExecutor(asked.jobs) as pool:
        results = pool.map(partial(digests, parts=asked.parts), circumstances())
        now = {name: digest for result in results for name, digest in result.items()}
    written = read_digests() if DIGESTS.exists() else {}
    if asked.update:
        DIGESTS.write_text(json.dumps(updated(written, now, asked.parts), indent=0, sort_keys=True) + "\n")
        return 0
    changed = [
        name
        for name in sorted({*written, *now})
        if is_chosen(name, asked.parts) and written.get(name) != now.get(name)
    ]
    for name in changed:
        print(name)
    print(
        f"{len(now)} scenarios and budgets; the requests of {len(changed)} differ from the recorded digests"
    )
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
