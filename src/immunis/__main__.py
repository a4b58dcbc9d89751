"""Run the command line: ``python -m immunis``, as torchrun needs it."""

from immunis.cli.main import main

main()
