import json
from pathlib import Path

from agentrl_core.rollout.failures import RemoteFailure, describe, format_traceback, may_be_elsewhere, root_cause


def raised(function):
    try:
        function()
    except ValueError as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_place_is_the_users_frame_not_the_librarys():
    error = raised(lambda: json.loads("{"))
    line = raised.__code__.co_firstlineno  # in this file, above
    path = Path(__file__)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    text = describe(error)
    assert text.startswith("JSONDecodeError: Expecting property name")
    assert f"({shown}:" in text
    assert int(text.rstrip(")").rpartition(":")[2]) > line


def test_it_is_one_line_of_bounded_length():
    error = raised(lambda: (_ for _ in ()).throw(ValueError("first\nsecond " + "x" * 5000)))
    text = describe(error)
    assert text.startswith("ValueError: first second xxx")
    assert "\n" not in text
    assert len(text) < 600


def test_what_no_terminal_or_file_takes_is_escaped():
    assert describe(RuntimeError("é \ud800 \x00 \x1b[31m")) == r"RuntimeError: é \ud800 \x00 \x1b[31m"


def test_an_exception_that_cannot_say_what_it_is_is_told_too():
    class MuteError(Exception):
        def __str__(self):
            raise LookupError

    assert describe(MuteError()) == "MuteError: (its text cannot be shown: str() of it raises LookupError)"


def test_an_endless_message_does_not_fill_the_log():
    assert len(format_traceback(ValueError("x" * 1_000_000))) < 30_000


def test_a_group_is_told_by_its_first_leaf():
    leaf = KeyError("missing")
    group = BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [leaf]), ValueError()])
    assert root_cause(group) is leaf
    assert describe(group) == "KeyError: 'missing'"


def test_an_error_without_message_is_its_type():
    assert describe(TimeoutError()) == "TimeoutError"


def test_errors_of_clients_and_networks_are_told_from_faults_of_the_code():
    class APIConnectionError(Exception):
        pass

    assert may_be_elsewhere(APIConnectionError())
    assert may_be_elsewhere(ConnectionRefusedError())
    assert may_be_elsewhere(RemoteFailure("APIConnectionError", "Connection error."))
    assert may_be_elsewhere(RemoteFailure("TimeoutError", ""))
    assert not may_be_elsewhere(RemoteFailure("KeyError", "'question'"))
    assert not may_be_elsewhere(BaseExceptionGroup("", [ValueError()]))
