"""The small data set of the experiments."""

from experiments.conftest import fonts_of_type_3, small, small_file  # noqa: F401
