"""Files that are written completely or not at all, and reasons why others cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO


def unfinished(path: Path) -> Path:
    """Return the path where a file is written until it is complete."""
    return path.with_name(f"{path.name}.part")


def begin(path: Path) -> BinaryIO:
    """Open the unfinished file, new and empty, and return it.

    An older file at the path is removed. If the path was a link, its destination is not touched. Raises
    OSError.
    """
    beside = unfinished(path)
    beside.unlink(missing_ok=True)
    return beside.open("xb")


def why_unwritable(path: Path) -> str:
    """Explain in a sentence why a file cannot be written; empty if it can. Its folder is created."""
    try:
        if path.is_dir():
            return f"{path} is a folder; name a file in it"
        path.parent.mkdir(parents=True, exist_ok=True)
        with begin(path) as file:
            file.write(b"?")  # a full disk still creates empty files
        unfinished(path).unlink()
    except OSError as error:
        return f"{path} cannot be written: {system_says(error)}"
    return ""


def why_not_appendable(path: Path) -> str:
    """Explain in a sentence why a file cannot be appended to; empty if it can."""
    try:
        path.open("a").close()
    except OSError as error:
        return f"{path} cannot be written: {system_says(error)}"
    return ""


def system_says(error: OSError) -> str:
    """Return the system's message for an error."""
    return error.strerror or str(error)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one piece, so that a reader never sees half of it and a full disk never destroys the
    old one.

    Raises OSError.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = unfinished(path)
    try:
        with begin(path) as file:
            file.write(data)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
