"""The contract that holds which modules of the suite a tool may import."""

from __future__ import annotations

import grimp
import pytest
from proofs.only_contract import OnlyContract


def broken(*imports: tuple[str, str]) -> list[str]:
    graph = grimp.ImportGraph()
    graph.add_module("tool")
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    contract = OnlyContract(
        "tools",
        {},
        {"source_modules": ["tool"], "package": "suite", "allowed_modules": ["suite.noun"]},
    )
    return contract.check(graph, verbose=False).metadata["broken"]


@pytest.mark.parametrize("importer", ["tool", "tool.room.module"])
def test_a_listed_module_may_be_imported(importer: str) -> None:
    assert broken((importer, "suite.noun"), ("suite.noun", "suite.inside"), ("suites", "suite.inside")) == []


@pytest.mark.parametrize("imported", ["suite", "suite.noun.part", "suite.inside"])
def test_another_one_may_not(imported: str) -> None:
    found = broken(("tool.module", imported), ("tool", "suite.noun"), ("tool", "suitelike"))
    assert found == [f"tool.module imports {imported}"]


def test_a_listed_module_is_needed() -> None:
    assert broken(("tool", "elsewhere")) == ["suite.noun is listed, but no tool imports it"]
