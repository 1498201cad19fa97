"""Files that are written whole or not at all, and why the system refuses others."""

from __future__ import annotations

from pathlib import Path


def unfinished(path: Path) -> Path:
    """Where a file is written, until it is whole."""
    return path.with_name(f"{path.name}.part")


def why_unwritable(path: Path) -> str:
    """Why a file could not be written, as a sentence; empty where it could. Its folder is made."""
    try:
        if path.is_dir():
            return f"{path} is a folder; name a file in it"
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = unfinished(path)
        beside.write_bytes(b"?")  # a full disk makes empty files
        beside.unlink()
    except OSError as error:
        return f"{path} cannot be written: {system_says(error)}"
    return ""


def why_not_appendable(path: Path) -> str:
    """Why nothing could be added to a file, as a sentence; empty where it could."""
    try:
        path.open("a").close()
    except OSError as error:
        return f"{path} cannot be written: {system_says(error)}"
    return ""


def system_says(error: OSError) -> str:
    """Why the system refused, in its own words."""
    return error.strerror or str(error)


def write_whole(path: Path, text: str) -> None:
    """Write a file in one piece: a reader never sees half of it, and a full disk costs no older one.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = unfinished(path)
    try:
        beside.write_text(text, "utf-8")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
