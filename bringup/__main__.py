"""`python -m bringup`."""

from bringup.cli.main import main

main()
