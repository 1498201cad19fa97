"""How the tests are dealt out to workers (`pytest -n auto`).

The tests of a file stay together, and so do the servers that they start. The reference is checked in many
configurations, though: each of them is dealt out on its own.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling

_DEALT_BY_PARAMETER = "test_reference_conforms.py"


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
