"""`python -m tokenwire` is the program `tokenwire`."""

from tokenwire.cli import main

main()
