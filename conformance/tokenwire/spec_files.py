"""Where the data of the specification lies: beside the repository's packages, or inside the wheel."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_IN_WHEEL = Path(__file__).parent / "spec"
_IN_REPOSITORY = Path(__file__).parents[2] / "spec"


def spec_root() -> Path:
    """The folder that holds `requirements/`, `schemas/`, `dialects/` and the chapters."""
    return _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_REPOSITORY


def read_yaml(path: Path) -> Any:
    """What a YAML file holds. Raises OSError, yaml.YAMLError."""
    import yaml  # here: `tokenwire --version` reads no table

    # The loader in C, if PyYAML was built with it, is nine times as fast.
    return yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def load_schema(name: str) -> dict[str, Any]:
    """The JSON Schema `spec/schemas/<name>.json`. Raises FileNotFoundError if there is none."""
    schema: dict[str, Any] = json.loads((spec_root() / "schemas" / f"{name}.json").read_text("utf-8"))
    return schema
