"""Files that are written whole or not at all, and why the system refuses others."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO


def unfinished(path: Path) -> Path:
    """Return the path where a file is written until it is complete."""
    return path.with_name(f"{path.name}.part")


def begin(path: Path) -> BinaryIO:
    """Return the unfinished file, new and empty: what lay there is gone, and where it led as a link is
    untouched.

    Raises OSError.
    """
    beside = unfinished(path)
    beside.unlink(missing_ok=True)
    return beside.open("xb")


def why_unwritable(path: Path) -> str:
    """Explain why a file could not be written, as a sentence; empty if it could. Its folder is made."""
    try:
        if path.is_dir():
            return f"{path} is a folder; name a file in it"
        path.parent.mkdir(parents=True, exist_ok=True)
        with begin(path) as file:
            file.write(b"?")  # a full disk makes empty files
        unfinished(path).unlink()
    except OSError as error:
        return f"{path} cannot be written: {system_says(error)}"
    return ""


def why_not_appendable(path: Path) -> str:
    """Explain why nothing could be appended to a file, as a sentence; empty if it could."""
    try:
        path.open("a").close()
    except OSError as error:
        return f"{path} cannot be written: {system_says(error)}"
    return ""


def system_says(error: OSError) -> str:
    """Return the system's own words for its refusal."""
    return error.strerror or str(error)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one piece: a reader never sees half of it, and a full disk costs no older one.

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
