"""The explanation of a requirement, for `tokenwire explain` and the documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from tokenwire.requirement import Requirement, load_requirements
from tokenwire.spec_files import spec_folders
from tokenwire.typed_table import suggestion
from tokenwire.usage_error import UsageError

_QUOTE = re.compile(r"^> \*\*(?P<id>[a-z0-9-]+)\*\* \((?:MUST|SHOULD|MAY)\) ")
_EXAMPLE = re.compile(r"```\S* title=\"violation of (?P<id>[a-z0-9-]+)\"")
_END_OF_SENTENCE = re.compile(r"[.!?](?=\s)")
_HEADING = re.compile(r"^(?P<marks>#+) (?P<title>.+)$")


@dataclass(frozen=True)
class _Passage:
    """The place of a requirement's sentence in its chapter, and the text around it."""

    chapter: str
    """The title of the chapter."""
    section: str
    """The title of the section. Empty if the sentence is in no section."""
    before: str
    """The Markdown text of the section between the previous requirement and this sentence."""
    after: str
    """The Markdown text between this sentence and the next requirement.

    If the sentence is in a group of sentences, the text after the group.
    """


@dataclass(frozen=True)
class Explanation:
    """A requirement, with the passage of the specification that contains it."""

    requirement: Requirement
    passage: _Passage

    @property
    def needs(self) -> str:
        """A description of the conditions for a PASS."""
        row = self.requirement
        if row.excluded:
            return f"there is no check: {row.excluded}"
        plural = "s" * (row.witnesses != 1)
        words = [f"{row.witnesses} observation{plural}, and no violation"]
        if row.applies_when:
            words.append(f"a target that shows {', '.join(row.applies_when)}")
        if row.condition:
            words.append(f"that {row.condition}")
        if row.contract == "instrumented":
            words.append("a server that was started for it (instrumented)")
        return "; ".join(words)

    @property
    def alone(self) -> str:
        """The command that checks only this requirement."""
        return f"tokenwire check --target URL --requirement {self.requirement.id}"


def _blocks(page: str) -> list[str]:
    """Return the paragraphs of a page. A fenced block counts as one paragraph, even with empty lines."""
    blocks: list[str] = []
    lines: list[str] = []
    fenced = False
    for line in page.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        if line or fenced:
            lines.append(line)
        elif lines:
            blocks.append("\n".join(lines))
            lines = []
    return [*blocks, "\n".join(lines)] if lines else blocks


@cache
def _passages(chapter: str) -> dict[str, _Passage]:
    """Return the passages of a chapter by the ids of their requirements."""
    title = section = ""
    found: dict[str, tuple[str, str, list[str]]] = {}
    group: list[str] = []
    prose: list[str] = []
    pages = (folder / f"{chapter}.md" for folder in spec_folders())
    page = next((page for page in pages if page.is_file()), None)
    for block in _blocks(page.read_text("utf-8")) if page is not None else ():
        if heading := _HEADING.match(block):
            if len(heading["marks"]) == 1:
                title = heading["title"]
            else:
                section = heading["title"]
            group, prose = [], []
        elif quote := _QUOTE.match(block):
            if group and any(found[name][2] for name in group):
                group, prose = [], []
            found[quote["id"]] = (section, "\n\n".join(prose), [])
            group.append(quote["id"])
        elif group:
            example = _EXAMPLE.match(block)
            for name in group:
                after = found[name][2]
                if example is None or example["id"] == name:
                    after.append(block)
                elif after:  # the example and the sentence before it belong to another requirement
                    after[-1] = _without_lead(after[-1])
        else:
            prose.append(block)
    return {
        name: _Passage(title, section, before, "\n\n".join(filter(None, after)))
        for name, (section, before, after) in found.items()
    }


def _without_lead(text: str) -> str:
    """Return a text.

    If the last sentence ends with a colon, leave this sentence out, because it only introduces an example.
    """
    if not text.endswith(":"):
        return text
    ends = [found.end() for found in _END_OF_SENTENCE.finditer(text)]
    return text[: ends[-1]] if ends else ""


def explain(requirement: str) -> Explanation:
    """Return the explanation of a requirement. Raises UsageError if it is unknown."""
    known = load_requirements()
    if requirement not in known:
        hint = suggestion(requirement, known, "`tokenwire list requirements` lists them all")
        raise UsageError(f"there is no requirement {requirement!r}; {hint}")
    row = known[requirement]
    return Explanation(row, _passages(row.chapter).get(row.id, _Passage(row.chapter, "", "", "")))
