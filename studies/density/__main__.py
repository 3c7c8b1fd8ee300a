"""The command `python -m studies.density`."""

from studies.command import main

if __name__ == "__main__":
    main("studies.density.study.Density")
