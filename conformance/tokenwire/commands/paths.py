"""Files and folders that options name: what cannot be written is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import typer

from tokenwire.disk import system_says, why_unwritable


def writable(file: Path, option: str) -> Path:
    """Make the folder of a file. Raises BadParameter where the file cannot be written."""
    if refusal := why_unwritable(file):
        raise typer.BadParameter(f"{option}: {refusal}")
    return file


def writable_folder(folder: Path, option: str) -> Path:
    """Make a folder. Raises BadParameter where nothing can be written there."""
    if refusal := why_unwritable(folder / "capture"):
        raise typer.BadParameter(f"{option}: {refusal}")
    return folder


def empty_folder(folder: Path, option: str) -> Path:
    """Make a folder. Raises BadParameter where something lies already, or nothing can be written."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise typer.BadParameter(f"{option} {folder} cannot be read: {system_says(error)}") from error
    if taken:
        raise typer.BadParameter(f"{option} {folder} is not an empty folder; give a new one for each run")
    return writable_folder(folder, option)
