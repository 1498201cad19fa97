"""`python -m tokenwire_reference`."""

from tokenwire_reference.cli import main

main()
