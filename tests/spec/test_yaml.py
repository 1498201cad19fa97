"""The YAML files of the repository: no key is lost, and PyYAML reads them without its part in C."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDERS = ("conformance", "docs_build", "proofs", "reference", "spec", "tests")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.yaml"))]


def repeated(node: yaml.Node | None) -> Iterator[str]:
    """Yield the keys that occur twice in one mapping. A loader keeps only the last one."""
    if isinstance(node, yaml.MappingNode):
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        yield from (name for name, number in names.items() if number > 1 and name != "<<")
        for _, value in node.value:
            yield from repeated(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from repeated(value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_has_each_key_once_for_every_loader(path: Path) -> None:
    assert list(repeated(yaml.compose(path.read_text("utf-8"), yaml.SafeLoader))) == []


def test_a_repeated_key_is_found() -> None:
    node = yaml.compose("{a: [{b: 1, b: 2}], c: {<<: {}, a: 1}}", yaml.SafeLoader)
    assert list(repeated(node)) == ["b"]
