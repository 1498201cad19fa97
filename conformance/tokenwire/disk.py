"""Files that are written completely or not at all, and the reasons why a file cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO


def unfinished(path: Path) -> Path:
    """Return the path of the temporary file to which a file is written until it is complete."""
    return path.with_name(f"{path.name}.part")


def begin(path: Path) -> BinaryIO:
    """Create the temporary file for a path, and return it open for writing.

    An existing temporary file is removed first. If the existing file is a link, the file to which the link
    points does not change. Raises OSError.
    """
    beside = unfinished(path)
    beside.unlink(missing_ok=True)
    return beside.open("xb")


def why_unwritable(path: Path) -> str:
    """Return the reason why a file cannot be written, as a sentence.

    The result is empty if the file can be written. Missing folders are created.
    """
    try:
        if path.is_dir():
            return f"{path} is a folder; name a file in it"
        path.parent.mkdir(parents=True, exist_ok=True)
        with begin(path) as file:
            file.write(b"?")  # on a full disk, an empty file can still be created
        unfinished(path).unlink()
    except OSError as error:
        return f"{path} cannot be written: {system_says(error)}"
    return ""


def why_not_appendable(path: Path) -> str:
    """Return the reason why a file cannot be appended to, as a sentence.

    The result is empty if appending is possible.
    """
    try:
        path.open("a").close()
    except OSError as error:
        return f"{path} cannot be written: {system_says(error)}"
    return ""


def system_says(error: OSError) -> str:
    """Return the operating system's message for an error."""
    return error.strerror or str(error)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file by writing a temporary file and renaming it.

    Readers never see a half-written file, and a full disk does not destroy the old file. Raises OSError.
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
