"""State that tokenwire stores between runs, in the user's state folder.

The state of a folder is stored under the folder's path, but never inside the folder itself. A checkout may
contain files and links that would be mistaken for the state of an earlier run.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs


def state_of(folder: Path = Path()) -> Path:
    """Return the state folder for the given folder. It is not created."""
    path = folder.resolve()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return platformdirs.user_state_path("tokenwire") / f"{path.name}-{digest}"


def make_private(folder: Path) -> Path:
    """Create a folder that only its user can read. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
