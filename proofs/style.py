"""Find docstrings, comments, messages and pages that are not plain English.

    python -m proofs.style PATH…       print the findings in these files
    python -m proofs.style --update    write smaller counts into proofs/style.yaml

Findings are counted for each file under two rules: docstrings, also of attributes, that begin with a clause
word, and banned words, such as a negation through "no". `proofs/style.yaml` allows the remaining findings of
each file. Its counts must never increase.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
ALLOWED = ROOT / "proofs" / "style.yaml"
CLAUSE = re.compile(r"(What|Whether|Where|That|Those|Of|How|Which|As|By|Why|So|Who|When|If)\b")
BANNED = re.compile(
    r"(?<![-\w])(?:told|untold|said|unsaid|stands?|errs|so many|none of them|such as is|goes another way"
    r"|(?<!there )(?:is|are|was|were) no (?!longer|more|less|fewer|other|matter)[a-z]\w*)(?![-\w])",
    re.IGNORECASE,
)
_COVERED = re.compile(r".*\.(py|md)|spec/.*\.yaml")
_EXCEPT = r"(tests|docs_build/violations)/|proofs/style|docs/(clients|tutorial)|spec/(TRACEAB|scenarios)"
_PUBLISHED = r"^> \*\*[\w-]+\*\* \([^\n]*|^ *sentence: [^\n]*"
"""Published sentences of the specification, which must not change."""
_CODE = re.compile(rf"^( *)```.*?^\1```|`[^`\n]*`|{_PUBLISHED}", re.MULTILINE | re.DOTALL)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each docstring with its line, including docstrings of attributes."""
    for node in ast.walk(tree):
        for item in body if isinstance(body := getattr(node, "body", None), list) else ():
            if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
                yield item.lineno, str(item.value.value).lstrip()


def _texts(tree: ast.Module, source: str) -> Iterator[tuple[int, str]]:
    """Yield each string of several words and each comment, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def findings(name: str, source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the rule ("opening" or "word") and the match of each finding in one file."""
    texts: Iterator[tuple[int, str]] = iter([(1, source)])
    if name.endswith(".py"):
        tree = ast.parse(source)
        for line, docstring in _docstrings(tree):
            if opening := CLAUSE.match(docstring):
                yield line, "opening", opening[0]
        texts = _texts(tree, source)
    for line, text in texts:
        prose = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
        for match in BANNED.finditer(prose):
            yield line + prose.count("\n", 0, match.start()), "word", match[0]


def files() -> list[str]:
    """Return the names of the files that the rules cover: Python, Markdown, and the YAML files of `spec/`."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [n for n in listed.splitlines() if _COVERED.fullmatch(n) and not re.match(_EXCEPT, n)]


def counts() -> dict[str, list[int]]:
    """Return the number of openings and of words in each file with findings."""
    found = {}
    for name in filter(lambda name: (ROOT / name).exists(), files()):
        rules = [rule for _, rule, _ in findings(name, (ROOT / name).read_text("utf-8"))]
        found[name] = [rules.count("opening"), rules.count("word")]
    return {name: pair for name, pair in found.items() if any(pair)}


def allowed() -> dict[str, list[int]]:
    """Return the allowed number of openings and of words in each file."""
    return yaml.safe_load(ALLOWED.read_text("utf-8")) or {}


def update() -> None:
    """Write the counts that are smaller than the allowed ones, and remove files without findings."""
    found = counts()
    both = {name: zip(pair, found.get(name, (0, 0)), strict=True) for name, pair in allowed().items()}
    least = {name: [min(pair) for pair in pairs] for name, pairs in both.items()}
    lines = (f"{name}: {pair}\n" for name, pair in sorted(least.items()) if any(pair))
    ALLOWED.write_text("# file: [openings, banned words]\n" + "".join(lines), "utf-8")


if __name__ == "__main__":
    for given in sys.argv[1:]:
        if given != "--update":
            for line, rule, match in findings(given, Path(given).read_text("utf-8")):
                print(f"{given}:{line}: {rule}: {match}")
    if "--update" in sys.argv:
        update()
