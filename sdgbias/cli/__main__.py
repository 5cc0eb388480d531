"""`python -m sdgbias.cli` is the command `sdgbias`."""

from sdgbias import exits
from sdgbias.cli import main


def run() -> None:
    with exits.quick_exit():
        main()


if __name__ == "__main__":
    run()
