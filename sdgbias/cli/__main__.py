"""`python -m sdgbias.cli` is the command `sdgbias`."""

from sdgbias import lifeline
from sdgbias.cli import main


def run() -> None:
    with lifeline.quick_exit():
        main()


if __name__ == "__main__":
    run()
