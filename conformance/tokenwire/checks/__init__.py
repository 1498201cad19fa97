"""The checks: one for each requirement, a file for each chapter or for each kind of relation between answers.

Importing this package fills `tokenwire.check.CHECKS`.
"""

from tokenwire.checks import (
    chat,
    delivery,
    framing,
    metadata,
    record,
    refusals,
    relations,
    sameness,
    stops,
    tito,
)

__all__ = [
    "chat",
    "delivery",
    "framing",
    "metadata",
    "record",
    "refusals",
    "relations",
    "sameness",
    "stops",
    "tito",
]
