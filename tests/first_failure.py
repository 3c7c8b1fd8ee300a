"""Shows a failure when it happens, not after the last test: the first in full, the others by name."""

import pytest


class FirstFailure:
    """Listens to the reports of the tests, whichever process ran them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.shown = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        terminal.write_line("")  # ends the line of dots
        if self.shown:
            terminal.write_line(f"FAILED {report.nodeid}", red=True)
            return
        self.shown = True
        terminal.write_sep("_", f"first failure: {report.nodeid}", red=True)
        terminal.write_line(report.longreprtext)
        terminal.write_sep("_", "the other tests go on")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist has no terminal
        config.pluginmanager.register(FirstFailure(config))
