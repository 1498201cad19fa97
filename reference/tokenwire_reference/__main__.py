"""`tokenwire-reference` and `python -m tokenwire_reference`: the command line, if the packages of the engine
are installed.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Without the engine's packages, print how to install them."""
    try:
        from tokenwire_reference.cli import main as command_line

        command_line()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "tokenwire_reference"}:
            raise
        print(
            f"tokenwire-reference: the reference engine needs the package {missing}, which is not installed: "
            "`pip install '.[reference]'` in Tokenwire's folder",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
