"""python -m ebl"""

from ebl.cli import main

if __name__ == "__main__":
    main()
