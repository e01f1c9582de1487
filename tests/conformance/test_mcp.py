"""How results of MCP's conformance suite are compared with the list of expected failures."""

import pytest

from .mcp import NO_RESULT, stale, verdict

EXPECTED = {"server": {"all": "absent", "some": {"a": "by design", "b": "by design"}}, "client": {}}


def run(scenario, revision="2026-07-28"):
    return "server", scenario, revision


@pytest.mark.parametrize(
    ("scenario", "failed", "as_expected", "told"),
    [
        ("other", [], True, "pass"),
        ("other", ["a"], False, "fail: a"),
        ("all", ["x", "y"], True, "fail, as expected: absent"),
        ("all", [], False, "passes now: take it off the list"),
        ("all", [NO_RESULT], False, "fail: no result"),
        ("some", ["a"], True, "fail, as expected: by design"),
        ("some", ["a", "c"], False, "fail: c"),
    ],
)
def test_a_failure_is_a_surprise_unless_the_list_says_why(scenario, failed, as_expected, told):
    assert verdict(run(scenario), failed, EXPECTED) == (as_expected, told)


def test_a_check_that_fails_in_no_revision_must_leave_the_list():
    played = {run("some", "2025-11-25"): ["a"], run("some"): []}
    assert list(stale(played, EXPECTED)) == ["server some: b passes now: take it off the list"]
    assert not list(stale({}, EXPECTED))
