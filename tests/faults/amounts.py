"""How much is tried: a little in `make test`, a thousand of each in `make faults`."""

import os

FULL = os.environ.get("MAST_FAULTS") == "full"


def times(few: int, many: int) -> int:
    """`few` in the small form of the tests, `many` in the full one."""
    return many if FULL else few
