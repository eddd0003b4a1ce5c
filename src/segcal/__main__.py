"""`python -m segcal`, which torchrun needs."""

from segcal.cli import main

main()
