"""State that tokenwire keeps between runs, in the user's state folder.

It is kept by the path of the folder that it is about, and never inside. A checkout may bring files and links,
and these are not the state of an earlier run.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs


def state_of(folder: Path = Path()) -> Path:
    """Return the folder for what is remembered about a folder. It is not made."""
    path = folder.resolve()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return platformdirs.user_state_path("tokenwire") / f"{path.name}-{digest}"


def make_private(folder: Path) -> Path:
    """Make a folder that only its user can read. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
