"""`python -m segcal`, which torchrun needs."""

from segcal.cli.app import main

main()
