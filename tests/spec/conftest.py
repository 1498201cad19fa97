"""What the tests of the specification read: rows, chapters, the documents around them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tokenwire.spec_files import spec_root

CHAPTERS = yaml.safe_load((spec_root() / "chapters.yaml").read_text("utf-8"))


@pytest.fixture(scope="session")
def spec() -> Path:
    return spec_root()


@pytest.fixture(scope="session")
def chapters(spec: Path) -> dict[str, dict]:
    """The YAML of each chapter, as it stands in the file."""
    return {
        name: yaml.safe_load((spec / "requirements" / f"{name}.yaml").read_text("utf-8")) for name in CHAPTERS
    }


@pytest.fixture(scope="session")
def rows(chapters: dict[str, dict]) -> list[dict]:
    """All rows, each with its `chapter` and its effective `profile`."""
    return [
        {"profile": chapter["profile"], **row, "chapter": name}
        for name, chapter in chapters.items()
        for row in chapter["requirements"]
    ]


@pytest.fixture(scope="session")
def prose(spec: Path) -> dict[str, str]:
    """Every written Markdown page of the specification by its path within `spec/`."""
    pages = (path for path in sorted(spec.rglob("*.md")) if path.name != "TRACEABILITY.md")
    return {str(path.relative_to(spec)): path.read_text("utf-8") for path in pages}


@pytest.fixture(scope="session")
def sentences(prose: dict[str, str]) -> list[tuple[str, str, str, str]]:
    """(page, id, level, sentence) of each block quote that states a requirement, conventions aside."""
    notation = re.compile(r"^> \*\*([a-z0-9-]+)\*\* \((MUST|SHOULD|MAY)\) (.+)$", re.MULTILINE)
    return [
        (page, *match.groups())
        for page, text in prose.items()
        if page != "README.md"
        for match in notation.finditer(text)
    ]
