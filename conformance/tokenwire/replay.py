"""Replay: judge the exchanges in captures, without a server."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tokenwire.checks.logprob_rules import rules_seen
from tokenwire.dialects.control import is_begin, read_call
from tokenwire.dialects.dialect import Dialect, load_dialects
from tokenwire.dialects.recognition import DialectResolver
from tokenwire.evicted import AnswerStore, Parsed, ReadBy
from tokenwire.judging.beside import WORKER, apart, in_place, is_exhibit
from tokenwire.judging.collector import few_collections
from tokenwire.judging.run import Run
from tokenwire.record import Answer
from tokenwire.report.subject import Subject, Unanswered
from tokenwire.report.wording import cut, first_few
from tokenwire.target.advertised import advertised_by, information_path
from tokenwire.target.shown import drops_its_constraint
from tokenwire.target.tokenizer import WAY_OUT, Tokenizer, tokenizer_of, way_of
from tokenwire.target.unseen_pointers import unseen_pointers
from tokenwire.typed_table import counted
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import Ending, ExchangeHead
from tokenwire.wire.foreign_capture import any_chunks
from tokenwire.wire.inert import inert

_OK = 200
SUFFIXES = (".jsonl", ".jsonl.gz")
_MOST_NAMED = 3
_LONGEST_REQUEST = 80


def capture_files(path: Path) -> list[Path]:
    """Return the capture files at a path: the file itself, or all capture files below the folder, sorted by
    path.

    Raises UsageError if there are none.
    """
    if path.is_file():
        return [path]
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES))
    if not files:
        what = "holds no file that ends in " + " or ".join(SUFFIXES) if path.is_dir() else "does not exist"
        raise UsageError(f"{path} {what}; give a capture, or a folder that `--record` wrote")
    return files


def captures(
    path: Path, store: AnswerStore | None = None, is_whole: Callable[[Path], bool] = lambda _: False
) -> Iterator[tuple[str, list[ExchangeHead]]]:
    """Yield the exchanges at a path, with one list for each recorded server.

    Without a store, all exchanges stay in memory. A file with many exchanges belongs to one server. Files
    with one exchange each, as `--record` writes them, belong together, except for those that are whole
    captures by `is_whole`. If adjacent folders contain the same requests, each folder belongs to its own
    server.
    """
    store = store or AnswerStore(held=sys.maxsize)
    together: list[tuple[Path, Parsed]] = []
    chunks = chain.from_iterable(map(any_chunks, capture_files(path)))
    for file, read in groupby(store.parse(chunks), key=itemgetter(0)):
        parsed = list(chain.from_iterable(some for _, some in read))
        if len(parsed) == 1 and path.is_dir() and not is_whole(file):
            together += [(file, only) for only in parsed]
        else:
            yield str(file), store.exchanges(parsed)
    if together:
        files = [file.relative_to(path) for file, _ in together]
        found = list(zip(files, store.exchanges([parsed for _, parsed in together]), strict=True))
        for name, exchanges in _by_server(path, found):
            yield name, sorted(exchanges, key=lambda exchange: exchange.started)


def _by_server(
    path: Path, found: Sequence[tuple[Path, ExchangeHead]]
) -> Iterator[tuple[str, list[ExchangeHead]]]:
    """Yield the name and the exchanges of each server in a folder.

    If the exchanges of two servers were mixed, they would look like one server that contradicts itself.
    """
    depth = _depth_of_servers(found)
    if depth is None:
        yield str(path), [exchange for _, exchange in found]
        return
    servers: dict[str, list[ExchangeHead]] = {}
    for file, exchange in found:
        folder = file.parts[: depth + 1] if len(file.parts) > depth + 1 else ()
        servers.setdefault(str(path.joinpath(*folder)), []).append(exchange)
    yield from servers.items()


def _depth_of_servers(found: Sequence[tuple[Path, ExchangeHead]]) -> int | None:
    """Return the depth of the folders that each contain the answers of one server.

    Return None if there is only one server. Several servers are recognized by two files with the same request
    whose paths differ only in the name of this folder. Folders that are named after dialects and scenarios do
    not count.
    """
    known = load_dialects().keys()
    first: dict[tuple[int, tuple[str, ...]], ExchangeHead] = {}
    for file, exchange in found:
        for depth, folder in enumerate(file.parts[:-1]):
            if folder == exchange.scenario or folder in known:
                continue
            rest = (*file.parts[:depth], *file.parts[depth + 1 :])
            other = first.setdefault((depth, rest), exchange)
            if other is not exchange and _asks_the_same(other, exchange):
                return depth
    return None


def _asks_the_same(first: ExchangeHead, second: ExchangeHead) -> bool:
    requests = [exchange.load().request for exchange in (first, second)]
    asked = [(request.method, request.path, request.body, request.raw_body) for request in requests]
    return asked[0] == asked[1]


@few_collections()
def read_run(
    exchanges: Sequence[ExchangeHead],
    resolver: DialectResolver,
    name: str,
    tokenizer: Tokenizer | None = None,
    store: AnswerStore | None = None,
) -> tuple[Run, list[ExchangeHead]]:
    """Read all exchanges of one server.

    Return the run, and the exchanges that match no dialect. Without `tokenizer`, the tokenizer is read from
    the capture if the capture contains the server's tokenizer answers.
    """
    advertised = advertised_by(exchanges)
    asked: list[tuple[ExchangeHead, ReadBy]] = []
    unknown = []
    ways: dict[Dialect, ReadBy] = {}
    hints: Any = {"delivery_hint": advertised.delivery, "adapters": advertised.adapters}
    exhibits = []
    for exchange in exchanges:
        begins = is_begin(exchange)  # the answer to this request is in a later exchange
        dialect = None if begins else resolver.dialect_of(exchange)
        if dialect is None:
            unknown.append(exchange)
        elif is_exhibit(exchange):
            exhibits.append(dialect.read(in_place(exchange.load()), **hints))
        else:
            way = ways.setdefault(dialect, partial(dialect.read, **hints))
            asked.append((exchange, way))
    streams = (store or AnswerStore()).read(asked)
    tokenizer = tokenizer or tokenizer_of(unknown)
    calls = tuple(call for exchange in unknown if (call := read_call(exchange)) is not None)
    asides = {call.exchange.name for call in calls}
    others = [
        exchange for exchange in unknown if way_of(exchange.request) is None and exchange.name not in asides
    ]
    alone, pairs = apart(streams)
    run = Run(
        tuple(alone),
        advertised,
        name,
        tokenizer=tokenizer,
        calls=calls,
        beside=tuple(pairs),
        worker_asked=any(exchange.scenario == WORKER for exchange in exchanges),
        exhibits=tuple(exhibits),
    )
    return run, others


def _endpoints(exchanges: Iterable[ExchangeHead]) -> str:
    counts = Counter(f"{e.request.method} {e.request.path.partition('?')[0]}" for e in exchanges)
    return ", ".join(f"{endpoint} ({count})" for endpoint, count in counts.most_common())


def silent(streams: Iterable[Answer]) -> str:
    """Describe the exchanges that have neither choices nor a refusal. Empty if there are none."""
    reasons: dict[str, list[str]] = {}
    for stream in streams:
        if stream.answered or stream.refused or stream.exchange.ending is Ending.HUNG_UP:
            continue
        exchange = stream.exchange
        reason = f"status {exchange.status}" if exchange.status not in (None, _OK) else str(exchange.ending)
        if exchange.ending is Ending.COMPLETE and exchange.status == _OK:
            reason = "status 200 and an error" if stream.error is not None else "status 200 and nothing"
        reasons.setdefault(reason, []).append(exchange.name)
    if not reasons:
        return ""
    words = (
        f"{len(names)} with {reason} ({first_few(names, _MOST_NAMED)})" for reason, names in reasons.items()
    )
    return "exchanges without an answer or a refusal: " + "; ".join(words)


def _statuses(dialect: str, answers: Iterable[Answer]) -> tuple[int, ...]:
    """Return the statuses of the answers of a dialect, in order."""
    statuses = {answer.exchange.status for answer in answers if answer.dialect == dialect}
    return tuple(sorted(filter(None, statuses)))


def rules(run: Run) -> Iterator[str]:
    """Yield the rules that the run's logprobs follow, for example division by the temperature."""
    where = f"{run.name}: " if run.name else ""
    yield from (where + words for words in rules_seen(run.answers))


def remarks(run: Run, unknown: Sequence[ExchangeHead] = ()) -> Iterator[str]:
    """Yield remarks that limit the meaning of a run's verdicts."""
    where = f"{run.name}: " if run.name else ""
    nobodys = [exchange for exchange in unknown if information_path(exchange.request) is None]
    if nobodys:
        number = counted(len(nobodys), "exchange")
        yield f"{where}{number} with endpoints that are in no dialect: {_endpoints(nobodys)}"
    if words := silent(run.answers):
        yield where + words
    yield from (where + words for words in unseen_pointers(run.answers))
    yield from (f"{where}{death.name}: {death.words}" for death in run.deaths)
    yield from (where + words for words in run.honesty.remarks())
    dropping = (stream for stream in run.answers if stream.asked.constraints and drops_its_constraint(stream))
    if not run.capabilities["constraints"].present and (first := next(dropping, None)) is not None:
        yield f"{where}constraints are accepted but not enforced, as {first.exchange.name} shows"
    not_known, texts = run.texts_not_asked
    if not_known:
        yield (
            f"{where}{not_known} of {texts} texts were not compared with their ids, because the server was "
            f"not asked to decode them: {WAY_OUT}"
        )
    if run.unknown_lists:
        names = ", ".join(sorted(run.unknown_lists))
        yield f"{where}not counted as customized_info, because it lacks an entry for each output id: {names}"


def _remarks_on_servers(path: Path, names: Sequence[str]) -> Iterator[str]:
    """Yield a remark if a folder contains answers of several servers."""
    folders = [name for name in names if not Path(name).is_file() and Path(name) != path]
    if len(folders) > 1:
        yield (
            f"{path} has answers of {len(folders)} servers to the same requests, in {', '.join(folders)}; "
            f"each is judged alone; `tokenwire compare {folders[0]} {folders[1]}` shows the differences"
        )


def _nothing_to_judge(paths: Sequence[Path], asked: Counter[str]) -> str:
    """Explain why captures with these requests, none of which is in a known dialect, cannot be judged."""
    names = ", ".join(map(str, paths))
    if not asked:
        return f"{names} has no complete exchange; give a capture, or a folder that `--record` wrote"
    requests = first_few([inert(cut(line, _LONGEST_REQUEST)) for line in asked], _MOST_NAMED)
    return (
        f"no exchange in {names} is in a known dialect: {counted(asked.total(), 'request')} to {requests}; "
        "`tokenwire list dialects` lists what is known, and --dialect FILE adds one"
    )


@few_collections()
def replay(
    paths: Sequence[Path], *, tokenizer: Tokenizer | None = None, store: AnswerStore | None = None
) -> Subject:
    """Read captures into one run for each recorded server. The store evicts answers if they exceed the memory
    limit.

    `tokenizer` is used for all servers. Without it, each server's own tokenizer is used. Raises UsageError if
    there is nothing to read or a file is not a capture, and OSError if a file cannot be read.
    """
    runs: list[Run] = []
    reported: list[str] = []
    detected: dict[str, str] = {}
    asked: Counter[str] = Counter()
    store = store or AnswerStore()
    for path in paths:
        recorded = list(captures(path, store))
        requests = (exchange.request for _, exchanges in recorded for exchange in exchanges)
        asked.update(f"{request.method} {request.path}" for request in requests)
        reported += _remarks_on_servers(path, [name for name, _ in recorded])
        for name, exchanges in recorded:
            resolver = DialectResolver(exchanges)
            run, unknown = read_run(exchanges, resolver, name, tokenizer, store)
            runs.append(run)
            detected = resolver.why | detected
            reported += remarks(run, unknown)
    if not any(run.streams for run in runs):
        raise UsageError(_nothing_to_judge(paths, asked))
    dialects = sorted({stream.dialect for run in runs for stream in run.streams})
    answers = [stream for run in runs for stream in (*run.streams, *(pair.other for pair in run.beside))]
    spoken = {stream.dialect for stream in answers if stream.answered}
    unanswered = {
        name: Unanswered(why, _statuses(name, answers))
        for name, why in sorted(detected.items())
        if name not in spoken
    }
    return Subject(
        captures=tuple(map(str, paths)),
        runs=tuple(runs),
        dialects=tuple(dialects),
        taken={name: why for name, why in sorted(detected.items()) if name in spoken},
        left_out={name: found.words for name, found in unanswered.items()},
        unanswered=unanswered,
        remarks=tuple(reported),
        rules=tuple(words for run in runs for words in rules(run)),
    )
