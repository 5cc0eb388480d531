"""`python -m sdgbias.cli` is the command `sdgbias`."""

from sdgbias.cli import main

main()
