"""Growth of regular expressions: counts the steps of a backtracking search, and makes texts that provoke it.

`count_steps` runs a pattern as Python's `re` does, step by step, so that growth is measured without a clock.
`attacks` derives texts from the structure of the pattern itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from re import _constants as c  # type: ignore[attr-defined]  # the parser that `re` itself uses
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

Text = str | bytes
Instruction = tuple[Any, ...]

_UNROLLED = 64
"""The most optional copies of a body; with more, their number counts as unbounded."""
_FEW, _MANY = 40, 160
"""Repetitions of a pump in the two texts that are compared."""
_STEPS_A_CHARACTER = 12
_MOST_GROWTH = 6.0
"""Times that the steps may grow where the text grows four times: 4 is linear, 16 quadratic."""
_MOST_STEPS = 400_000
"""A search that takes more on such a short text grows at least quadratically."""
_SAMPLES, _PUMPS, _PREFIXES = 12, 40, 6


class TooManyStepsError(Exception):
    """A search takes more steps than are counted."""


# The steps of a search.


def _characters(node: Any, flags: int, *, of_bytes: bool) -> Callable[[str], bool]:
    """Return a test for the characters that a node of one character matches."""
    kind, value = node
    ignore_case = bool(flags & re.IGNORECASE)
    ascii_only = of_bytes or bool(flags & re.ASCII)

    def spellings(character: str) -> tuple[str, ...]:
        return (character, character.lower(), character.upper()) if ignore_case else (character,)

    def in_category(category: Any, character: str) -> bool:
        narrow = ascii_only and ord(character) > 127
        match str(category).removeprefix("CATEGORY_").removeprefix("UNI_").removeprefix("NOT_"):
            case "DIGIT":
                found = character.isdecimal() and not narrow
            case "SPACE":
                found = character.isspace() and not narrow
            case "WORD":
                found = (character.isalnum() or character == "_") and not narrow
            case other:
                raise NotImplementedError(other)
        return found != ("NOT_" in str(category))

    def in_set(items: Any, character: str) -> bool:
        for item, operand in items:
            if item is c.LITERAL and any(ord(spelled) == operand for spelled in spellings(character)):
                return True
            if item is c.RANGE and any(operand[0] <= ord(s) <= operand[1] for s in spellings(character)):
                return True
            if item is c.CATEGORY and in_category(operand, character):
                return True
        return False

    if kind is c.LITERAL:
        return lambda character: any(ord(spelled) == value for spelled in spellings(character))
    if kind is c.NOT_LITERAL:
        return lambda character: all(ord(spelled) != value for spelled in spellings(character))
    if kind is c.ANY:
        return (lambda _: True) if flags & re.DOTALL else (lambda character: character != "\n")
    negated = bool(value) and value[0][0] is c.NEGATE
    return lambda character: in_set(value[negated:], character) != negated


_SINGLE = (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN)


class Program:
    """A pattern as instructions of a backtracking machine."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.pattern = pattern
        self.tree = parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
        self.of_bytes = isinstance(pattern.pattern, bytes)
        self._code: list[Instruction] = []
        self._loops = 0
        self._compile(self.tree, pattern.flags)
        self._code.append(("end",))

    def _emit(self, *instruction: Any) -> int:
        self._code.append(instruction)
        return len(self._code) - 1

    def _compile(self, nodes: Iterable[Any], flags: int) -> None:
        for node in nodes:
            self._compile_node(node, flags)

    def _compile_node(self, node: Any, flags: int) -> None:
        kind, value = node
        if kind in _SINGLE:
            self._emit("set", _characters(node, flags, of_bytes=self.of_bytes))
        elif kind is c.SUBPATTERN:
            group, added, removed, body = value
            if group is not None:
                self._emit("save", 2 * group)
            self._compile(body, (flags | added) & ~removed)
            if group is not None:
                self._emit("save", 2 * group + 1)
        elif kind is c.BRANCH:
            self._compile_branch(value[1], flags)
        elif kind in (c.MAX_REPEAT, c.MIN_REPEAT):
            least, most, body = value
            self._compile_repeat(least, most, body, flags, lazy=kind is c.MIN_REPEAT)
        elif kind in (c.POSSESSIVE_REPEAT, c.ATOMIC_GROUP):
            begin = self._emit()
            if kind is c.ATOMIC_GROUP:
                self._compile(value, flags)
            else:
                least, most, body = value
                self._compile_repeat(least, most, body, flags, lazy=False)
            self._emit("end")
            self._code[begin] = ("atomic", len(self._code))
        elif kind in (c.ASSERT, c.ASSERT_NOT):
            direction, body = value
            begin = self._emit()
            self._compile(body, flags)
            self._emit("end")
            width = body.getwidth()[0] if direction < 0 else 0
            self._code[begin] = ("look", len(self._code), width, kind is c.ASSERT)
        elif kind is c.AT:
            self._emit("at", str(value).removeprefix("AT_"), flags)
        elif kind is c.GROUPREF:
            self._emit("again", value)
        else:
            raise NotImplementedError(kind)

    def _compile_branch(self, branches: Sequence[Any], flags: int) -> None:
        jumps = []
        for branch in branches[:-1]:
            split = self._emit()
            self._compile(branch, flags)
            jumps.append(self._emit())
            self._code[split] = ("split", split + 1, len(self._code))
        self._compile(branches[-1], flags)
        for jump in jumps:
            self._code[jump] = ("jump", len(self._code))

    def _compile_repeat(self, least: int, most: Any, body: Any, flags: int, *, lazy: bool) -> None:
        def split(begin: int, out: int) -> Instruction:
            return ("split", out, begin) if lazy else ("split", begin, out)

        for _ in range(least):
            self._compile(body, flags)
        if most is c.MAXREPEAT or most - least > _UNROLLED:
            loop = self._loops
            self._loops += 1
            begin = self._emit()
            self._emit("enter", loop)
            self._compile(body, flags)
            self._emit("progress", loop)
            self._emit("jump", begin)
            self._code[begin] = split(begin + 1, len(self._code))
            return
        splits = []
        for _ in range(most - least):
            splits.append(self._emit())
            self._compile(body, flags)
        for begin in splits:
            self._code[begin] = split(begin + 1, len(self._code))

    def spans(self, text: Text, *, scan: bool = True, most: int = 10**9) -> tuple[list[tuple[int, int]], int]:
        """Return what is found, and the steps. Without `scan`, only the beginning of the text is tried.

        Raises TooManyStepsError.
        """
        characters = text.decode("latin-1") if isinstance(text, bytes) else text
        machine = _Machine(self._code, characters, most)
        found: list[tuple[int, int]] = []
        start = 0
        was_empty = False
        """The last match was empty: the next one at the same place is not."""
        while start <= len(characters):
            end = machine.run(0, start, beyond=start if was_empty else -1)
            machine.step()
            was_empty = end == start
            if end is not None:
                found.append((start, end))
                start = end
            else:
                start += 1
            if not scan:
                break
        return found, machine.steps


class _Machine:
    def __init__(self, code: Sequence[Instruction], text: str, most: int) -> None:
        self._code, self._text, self._most = code, text, most
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > self._most:
            raise TooManyStepsError

    def run(
        self, pc: int, position: int, groups: dict[int, int] | None = None, *, beyond: int = -1
    ) -> int | None:
        """Return where a match from here ends, None without one. It does not end at `beyond`."""
        code, text, length = self._code, self._text, len(self._text)
        saved: dict[int, int] = groups if groups is not None else {}
        stack: list[tuple[int, int, dict[int, int]]] = []
        while True:
            self.step()
            kind, *operands = code[pc]
            fails = False
            if kind == "set":
                if position < length and operands[0](text[position]):
                    pc, position = pc + 1, position + 1
                else:
                    fails = True
            elif kind == "split":
                stack.append((operands[1], position, saved))
                pc = operands[0]
            elif kind == "jump":
                pc = operands[0]
            elif kind == "save":
                saved, pc = {**saved, operands[0]: position}, pc + 1
            elif kind == "enter":
                saved, pc = {**saved, -1 - operands[0]: position}, pc + 1
            elif kind == "progress":
                fails = saved[-1 - operands[0]] == position
                pc += 1
            elif kind == "atomic":
                end = self.run(pc + 1, position, saved)
                if end is None:
                    fails = True
                else:
                    pc, position = operands[0], end
            elif kind == "look":
                behind, width, wanted = operands
                begin = position - width
                seen = begin >= 0 and self.run(pc + 1, begin, saved) is not None
                fails, pc = seen != wanted, behind
            elif kind == "at":
                fails, pc = not self._is_at(operands[0], operands[1], position), pc + 1
            elif kind == "again":
                begin, end = saved.get(2 * operands[0], 0), saved.get(2 * operands[0] + 1, -1)
                word = text[begin:end] if end >= begin else None
                self.steps += len(word or "")
                if word is None or not text.startswith(word, position):
                    fails = True
                else:
                    pc, position = pc + 1, position + len(word)
            elif position != beyond:
                return position
            else:
                fails = True
            if fails:
                if not stack:
                    return None
                pc, position, saved = stack.pop()

    def _is_at(self, kind: str, flags: int, position: int) -> bool:
        text = self._text

        def is_word(index: int) -> bool:
            return 0 <= index < len(text) and (text[index].isalnum() or text[index] == "_")

        match kind:
            case "BEGINNING":
                lines = bool(flags & re.MULTILINE) and position > 0 and text[position - 1] == "\n"
                return position == 0 or lines
            case "BEGINNING_STRING":
                return position == 0
            case "END":
                lines = bool(flags & re.MULTILINE) and text[position : position + 1] == "\n"
                return position == len(text) or text[position:] == "\n" or lines
            case "END_STRING":
                return position == len(text)
            case "BOUNDARY" | "NON_BOUNDARY":
                return (is_word(position - 1) != is_word(position)) == (kind == "BOUNDARY")
            case _:
                raise NotImplementedError(kind)


# Texts that are made from the structure of a pattern.


class _Attacks:
    def __init__(self, program: Program) -> None:
        self._of_bytes = isinstance(program.pattern.pattern, bytes)
        self._flags = program.pattern.flags
        own = list(dict.fromkeys(_literals(program.tree)))
        self._own = [chr(code) for code in own]
        self._alphabet = list(dict.fromkeys([*self._own, *"a0 \n\"'", "é", "\x01"]))
        self._found: dict[str, None] = {}
        self._texts: list[tuple[str, str, str]] = []
        self._visit(list(program.tree), [""], [""])
        short = self._own[:6]
        # Words of the pattern's own characters: they need no part of its structure.
        for pump in chain(short, (a + b for a in short for b in short)):
            self._texts += (("", pump, ""), ("", pump, "\x01"))

    def texts(self) -> Iterator[tuple[str, str, str]]:
        yield from dict.fromkeys(self._texts)

    def _accepted(self, node: Any) -> list[str]:
        test = _characters(node, self._flags, of_bytes=self._of_bytes)
        taken = [character for character in self._alphabet if test(character)]
        return taken or [character for character in map(chr, range(1, 0x250)) if test(character)][:1]

    def _samples(self, nodes: Sequence[Any]) -> list[str]:
        """Return some texts that these nodes match, the shortest first."""
        samples = [""]
        for node in nodes:
            own = self._samples_of(node)
            # A few of each, and not all products: the first of the others goes with each.
            longer = [left + own[0] for left in samples] + [samples[0] + right for right in own[1:]]
            if len(own) > 1:
                longer += [samples[-1] + own[-1], samples[-1] + own[1]]
            samples = list(dict.fromkeys(longer))[:_SAMPLES]
        return samples

    def _samples_of(self, node: Any) -> list[str]:
        kind, value = node
        if kind in _SINGLE:
            return self._accepted(node)[:_SAMPLES]
        if kind is c.SUBPATTERN:
            return self._samples(list(value[3]))
        if kind is c.ATOMIC_GROUP:
            return self._samples(list(value))
        if kind is c.BRANCH:
            return [sample for branch in value[1] for sample in self._samples(list(branch))[:4]] or [""]
        if kind in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            least, _, body = value
            bodies = self._samples(list(body))
            few = [sample * max(1, least) for sample in bodies]
            return ([bodies[0] * least] if least else [*few[:1], ""]) + few[1:]
        if kind is c.ASSERT and value[0] < 0:
            return self._samples(list(value[1]))[:4]
        if kind is c.AT and str(value) == "AT_BEGINNING" and self._flags & re.MULTILINE:
            return ["", "\n"]
        return [""]

    def _visit(self, nodes: Sequence[Any], before: Sequence[str], after: Sequence[str]) -> None:
        for position, node in enumerate(nodes):
            kind, value = node
            reached = [head + own for own in self._samples(nodes[:position])[:_PREFIXES] for head in before][
                :_PREFIXES
            ]
            behind = [own + tail for own in self._samples(nodes[position + 1 :])[:3] for tail in after][:3]
            if kind is c.SUBPATTERN:
                self._visit(list(value[3]), reached, behind)
            elif kind is c.ATOMIC_GROUP:
                self._visit(list(value), reached, behind)
            elif kind is c.BRANCH:
                for branch in value[1]:
                    self._visit(list(branch), reached, behind)
            elif kind in (c.ASSERT, c.ASSERT_NOT):
                self._visit(list(value[1]), reached, behind)
            elif kind in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
                self._pump(list(value[2]), reached, behind)
                self._visit(list(value[2]), reached, behind)

    def _pump(self, body: Sequence[Any], before: Sequence[str], after: Sequence[str]) -> None:
        bodies = self._samples(body)
        head = before[0]
        pumps = [
            *bodies,
            *(prefix + sample for prefix in before[:2] for sample in bodies[:4]),
            *(prefix for prefix in before[:2]),
            # What is behind begins again: the next search starts within it.
            *(head + sample + tail for sample in bodies[:2] for tail in after[:2]),
            *(head + sample + tail[:-1] for sample in bodies[:2] for tail in after[:2] if tail),
            *(a + b for a in bodies[:3] for b in bodies[:3]),
        ]
        for pump in islice(dict.fromkeys(filter(None, pumps)), _PUMPS):
            for prefix in dict.fromkeys((head, before[-1], "")):
                for suffix in dict.fromkeys(("", "\x01", "\n", after[0][:-1], after[0])):
                    self._texts.append((prefix, pump, suffix))


def _literals(nodes: Any) -> Iterator[int]:
    """Yield the characters that a pattern names."""
    for kind, value in nodes:
        if kind in (c.LITERAL, c.NOT_LITERAL):
            yield value
        elif kind is c.IN:
            for item, operand in value:
                if item is c.LITERAL:
                    yield operand
                elif item is c.RANGE:
                    yield operand[0]
        elif kind is c.SUBPATTERN:
            yield from _literals(value[3])
        elif kind is c.ATOMIC_GROUP:
            yield from _literals(value)
        elif kind is c.BRANCH:
            for branch in value[1]:
                yield from _literals(branch)
        elif kind in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            yield from _literals(value[2])
        elif kind in (c.ASSERT, c.ASSERT_NOT):
            yield from _literals(value[1])


def attacks(program: Program) -> Iterator[tuple[str, str, str]]:
    """Yield a prefix, a pump that is repeated, and a suffix, each made from the structure of a pattern."""
    return _Attacks(program).texts()


def growth(pattern: re.Pattern[Any], *, scan: bool = True) -> str:
    """Return how a pattern grows faster than its text, with a text that shows it; empty for linear growth.

    scan: the pattern is searched for all over a text, and not only matched at its beginning.
    """
    program = Program(pattern)

    def steps(prefix: str, pump: str, suffix: str, times: int, most: int) -> int:
        written = prefix + pump * times + suffix
        text: Text = written.encode("latin-1", "replace") if program.of_bytes else written
        return program.spans(text, scan=scan, most=most)[1]

    for prefix, pump, suffix in attacks(program):
        shown = f"{prefix!r} + {pump!r} * n + {suffix!r}"
        try:
            many = steps(prefix, pump, suffix, _MANY, _MOST_STEPS)
            if many <= _STEPS_A_CHARACTER * len(prefix + pump * _MANY + suffix):
                continue
            few = steps(prefix, pump, suffix, _FEW, _MOST_STEPS)
            # What is bounded may only have reached its bound at the longer text.
            if many > _MOST_GROWTH * few:
                longest = steps(prefix, pump, suffix, 4 * _MANY, 20 * many)
                if longest > _MOST_GROWTH * many:
                    return f"{shown}: {many} steps for n = {_MANY}, {longest} for n = {4 * _MANY}"
        except TooManyStepsError:
            return f"{shown}: too many steps for n = {_MANY}"
    return ""
