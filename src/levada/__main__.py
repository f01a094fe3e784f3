"""`python -m levada` is the command `levada`."""

from levada.cli import main

main()
