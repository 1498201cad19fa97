"""The tests run where MkDocs is not installed, as in `nox -s tests`."""

from __future__ import annotations

import sys

import pytest


def test_the_pages_of_the_site_are_made_without_mkdocs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in {"docs_build", "mkdocs"}]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mkdocs", None)
    from docs_build.generated_pages import generated

    assert any(page.uri == "bugs.md" for page in generated([]))


def test_no_test_imports_the_hook_of_mkdocs() -> None:
    from docs_build.published import ROOT

    sources = {
        path: path.read_text("utf-8")
        for path in (ROOT / "tests").rglob("*.py")
        if path.name != "test_without_mkdocs.py"
    }
    assert [
        path
        for path, source in sources.items()
        if "import mkdocs" in source or "docs_build import hook" in source
    ] == []
