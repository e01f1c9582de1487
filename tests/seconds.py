"""Pytest plugin that prints CPU and wall seconds per folder of tests, also with several test processes.

CPU seconds include those of processes that a test started and waited for. Unlike wall seconds, they hardly change on
a busy machine.
"""

import os
from collections import Counter

import pytest
from tests import warm

CPU = "CPU seconds"


def _cpu_s():
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system + warm.cpu_s[0]


def _folder(nodeid):
    return "/".join(nodeid.partition("::")[0].split("/")[:-1][:2])


class Seconds:
    """Measures each test where it runs, and adds up where reports arrive."""

    def __init__(self):
        self.start = {}
        self.tests, self.cpu, self.wall = Counter(), Counter(), Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.start[item.nodeid] = _cpu_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "teardown":
            report.user_properties.append((CPU, _cpu_s() - self.start.pop(item.nodeid)))
        return report

    def pytest_runtest_logreport(self, report):
        folder = _folder(report.nodeid)
        self.wall[folder] += report.duration
        if report.when == "teardown":
            self.tests[folder] += 1
            self.cpu[folder] += dict(report.user_properties).get(CPU, 0.0)

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("seconds per folder")
        terminalreporter.write_line(f"{'cpu s':>7} {'wall s':>7} {'tests':>6}  folder")
        for folder, _ in self.wall.most_common():
            cells = f"{self.cpu[folder]:7.1f} {self.wall[folder]:7.1f} {self.tests[folder]:6}"
            terminalreporter.write_line(f"{cells}  {folder}")
        total = f"{self.cpu.total():7.1f} {self.wall.total():7.1f} {self.tests.total():6}"
        terminalreporter.write_line(f"{total}  all, one test after the other")


def pytest_configure(config):
    config.pluginmanager.register(Seconds())
