"""The command `python -m studies.tables`."""

from studies.tables.study import main

if __name__ == "__main__":
    main()
