"""A program that compiles grammars within limits, to learn if a grammar is valid and how much memory it
takes.

The server starts the program with `python -m`, and sends grammars to its standard input. Each grammar is
compiled in a forked process, which can be killed at a limit without affecting anything else. The program
imports only llguidance.

    server ──▶ program   {"tokens": ["…"], "eos": [2], "special": [0, 2], "seconds": 2.0, "bytes": 67108864}
    server ──▶ program   "a grammar"
    program ──▶ server   {"bytes": 123456}, {"error": "…"} or {"ended": "seconds"}

SIGUSR1 ends the current trial.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

Encode = Callable[[str], list[int]]
LIMITS = LLParserLimits(
    # A schema of 1,000 optional properties has 4,000 items in a row.
    max_items_in_row=10_000,
    step_max_items=50_000,
    step_lexer_fuel=100_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)
"""llguidance's limits for one mask.

They amount to some milliseconds, and to some tens of megabytes of lexer states.
"""
_LONGEST_ERROR = 2000


def check(tokens: LLTokenizer, grammar: str) -> None:
    """Check a grammar. Raises ValueError with llguidance's message if it is not supported."""
    failed, words = LLMatcher.validate_grammar_with_warnings(grammar, tokens, limits=LIMITS)
    if failed or words:
        raise ValueError(words[0])


def started(tokens: LLTokenizer, grammar: str) -> LLMatcher:
    """Compile a grammar and compute its first mask.

    Raises ValueError if this exceeds a limit of llguidance.
    """
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=LIMITS)
    matcher.compute_bitmask()
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


class _Vocabulary:
    """The tokens of a model in llguidance's form."""

    bos_token_id = None

    def __init__(
        self, tokens: Sequence[bytes], eos: Sequence[int], special: Sequence[int], encode: Encode
    ) -> None:
        self.eos_token_id = eos[0]
        self.special_token_ids = special
        self.tokens = tokens
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def make_tokens(
    tokens: Sequence[bytes], eos: Sequence[int], special: Sequence[int], encode: Encode
) -> LLTokenizer:
    """Return the tokens of a model in llguidance's form.

    `encode` converts text that a grammar forces into tokens.
    """
    vocabulary = _Vocabulary(tokens, eos, special, encode)
    return LLTokenizer(TokenizerWrapper(vocabulary), len(tokens), list(eos))


def _byte_by_byte(tokens: Sequence[bytes]) -> Encode:
    """Return an encoder that converts text to single-byte tokens.

    The encoder does not affect the cost of a grammar.
    """
    single = {token[0]: token_id for token_id, token in enumerate(tokens) if len(token) == 1}
    return lambda text: [single[byte] for byte in text.encode() if byte in single]


class GrammarTrials:
    """Tries grammars one after the other, each in its own process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        tokens = [token.encode("latin-1") for token in settings["tokens"]]
        self._tokens = make_tokens(tokens, settings["eos"], settings["special"], _byte_by_byte(tokens))
        self._seconds: float = settings["seconds"]
        self._bytes: int = settings["bytes"]
        self._under_way: int | None = None

    def end_trial(self, *_: object) -> None:
        """End the current trial, at SIGUSR1."""
        if self._under_way is not None:
            os.kill(self._under_way, signal.SIGKILL)

    def run(self, grammar: str) -> dict[str, Any]:
        """Try a grammar; return the answer for the server."""
        before = _resident_bytes()
        result, said = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        self._under_way = child = os.fork()
        if child == 0:
            self._try(grammar, said)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        os.close(said)
        with open(result, "rb") as pipe:  # noqa: PTH123 - a file descriptor
            error = pipe.read().decode()
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        self._under_way = None
        _, status, usage = os.wait4(child, 0)
        size = max(0, usage.ru_maxrss * 1024 - before)
        if status:
            return {"ended": _what_ended(os.waitstatus_to_exitcode(status))}
        if error:
            return {"error": error}
        return {"bytes": size} if size <= self._bytes else {"ended": "bytes"}

    def _try(self, grammar: str, said: int) -> None:
        """Try the grammar in the forked process, write the error if there is one, and exit."""
        # SIGPROF ends the forked process, even inside llguidance.
        signal.setitimer(signal.ITIMER_PROF, self._seconds)
        if sys.platform == "linux":
            most = _virtual_bytes() + self._bytes
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = 0
        try:
            check(self._tokens, grammar)
            started(self._tokens, grammar)
        except ValueError as error:
            os.write(said, str(error).encode(errors="replace")[:_LONGEST_ERROR])
        except MemoryError:
            code = _NO_MEMORY
        except BaseException as error:  # This also catches panics of llguidance.
            os.write(said, f"{type(error).__name__}: {error}".encode(errors="replace")[:_LONGEST_ERROR])
        finally:
            os._exit(code)


_NO_MEMORY = 77


def _what_ended(code: int) -> str:
    """Return the limit that ended a trial, or its exit status."""
    if code == -signal.SIGPROF:
        return "seconds"
    return "bytes" if code in {-signal.SIGABRT, _NO_MEMORY} else f"exit status {code}"


def _virtual_bytes() -> int:
    return _pages(0) * resource.getpagesize()


def _resident_bytes() -> int:
    return _pages(1) * resource.getpagesize() if sys.platform == "linux" else 0


def _pages(place: int) -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123 - one read, before each trial
        return int(file.read().split()[place])


def main() -> None:
    """Answer each line of standard input with a line of output, until the input ends."""
    # only the server ends this program, by closing its standard input
    for ending in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    asked = sys.stdin.buffer
    trials = GrammarTrials(json.loads(asked.readline()))
    signal.signal(signal.SIGUSR1, trials.end_trial)
    os.nice(5)
    for line in asked:
        sys.stdout.write(json.dumps(trials.run(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
