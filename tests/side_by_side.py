"""How the tests are dealt out to workers (`pytest -n auto`).

The tests of a file stay together, and so do the servers that they start. The reference is checked in many
configurations, though: each of them is dealt out on its own.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling

_DEALT_BY_PARAMETER = "test_reference_conforms.py"


def await_others_last(items: list[Any]) -> None:
    """Move what looks at all configurations to the end: it would wait for those that others check."""
    items.sort(key=lambda item: item.path.name == _DEALT_BY_PARAMETER and not hasattr(item, "callspec"))


class SideBySide(LoadFileScheduling):
    """A file to a worker, but where the parameter of a test says what is started."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        _, bracket, parameter = test.partition("[")
        return file + bracket + parameter if file.endswith(_DEALT_BY_PARAMETER) else file


def scheduler(config: Any, log: Any) -> SideBySide:
    """The deal; in the order in which tests are collected: the longest come first."""
    config.option.loadscopereorder = False
    return SideBySide(config, log)
