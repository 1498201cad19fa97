"""Locate the data of the specification, in the repository or in the wheel, and the data of installed
extensions. A package extends the suite with an entry point of the group `tokenwire.extensions`, which names a
module. The folder `spec` next to the named module contains `dialects/`, `schemas/` and `requirements/`. The
module registers the checks of its requirements. A file `commands.toml` next to the module adds commands
(`tokenwire.tools`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent


def beside_packages(name: str) -> Path:
    """Return a folder of data, which is inside the wheel or at the top of the repository."""
    in_wheel = _PACKAGE / name
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parents[1] / name


def spec_root() -> Path:
    """Return the folder with `requirements/`, `schemas/`, `dialects/` and the chapters."""
    return beside_packages("spec")


@cache
def extensions() -> tuple[EntryPoint, ...]:
    """Return the extensions among the installed packages, sorted by name."""
    return tuple(sorted(entry_points(group="tokenwire.extensions"), key=lambda point: point.name))


def folder_of(point: EntryPoint) -> Path | None:
    """Return the folder of an extension's module, without importing it. None if there is no such module."""
    module = find_spec(point.module)
    return Path(module.origin).parent if module is not None and module.origin else None


@cache
def spec_folders() -> tuple[Path, ...]:
    """Return `spec_root()` and the folders of extensions.

    Raises ValueError for an extension that has neither data nor commands.
    """
    folders = [spec_root()]
    for point in extensions():
        folder = folder_of(point)
        if folder is not None and (folder / "spec").is_dir():
            folders.append(folder / "spec")
        elif folder is None or not (folder / "commands.toml").is_file():
            raise ValueError(
                f"the extension {point.name} ({point.value}) has neither a folder `spec` nor a file "
                "`commands.toml` beside its module"
            )
    return tuple(folders)


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Raises OSError and yaml.YAMLError."""
    import yaml  # `tokenwire --version` must not pay for this import

    # PyYAML's loader in C, which is optional, is nine times as fast.
    return yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def load_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema `schemas/<name>.json` from any specification folder.

    Raises FileNotFoundError if it does not exist.
    """
    return schema_in(spec_folders(), name)


def schema_in(folders: Iterable[Path], name: str) -> dict[str, Any]:
    """Return a schema from the first of these folders that has it. Raises FileNotFoundError if no folder has
    it.
    """
    files = [folder / "schemas" / f"{name}.json" for folder in folders]
    file = next((file for file in files if file.is_file()), files[0])
    schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return schema
