"""python -m ebl, and the command `ebl`."""

import sys


def main() -> None:
    try:
        from ebl.cli import main as run
    except ModuleNotFoundError as error:
        print(f'ebl: the command line needs {error.name}: pip install "ebl[cli]"', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
