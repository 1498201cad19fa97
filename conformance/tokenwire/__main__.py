"""Run the program `tokenwire` as `python -m tokenwire`."""

from tokenwire.cli import main

main()
