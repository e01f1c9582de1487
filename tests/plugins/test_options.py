from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError, RunError
from agentrl_core.plugins.options import construct

if TYPE_CHECKING:
    from decimal import Decimal


@attrs.frozen
class Bounds:
    low: float = 0.0
    high: float = 1.0


@dataclasses.dataclass
class Window:
    size: int = 1


@attrs.frozen(kw_only=True)
class Schedule:
    """Options of every shape that a config can hold."""

    steps: Sequence[int] = ()
    names: frozenset[str] = frozenset()
    pair: tuple[str] = ("",)
    weights: Mapping[str, float] = attrs.Factory(dict)
    bounds: tuple[Bounds, ...] = ()
    level: float | int | None = None
    stop: str | list[str] = ""
    optional: Bounds | None = None
    window: Window = attrs.Factory(Window)
    power: Literal[1, 2] = 1
    inner: Component | None = None


@attrs.frozen(kw_only=True)
class Loss:
    clip: float = attrs.field(default=0.2, validator=attrs.validators.gt(0))
    betas: tuple[float, float] = (0.9, 0.95)
    names: tuple[str, ...] = ()
    mode: Literal["soft", "hard"] = "soft"
    steps: int = 1
    strict: bool = False
    limit: float | None = None
    either: int | str = 0
    path: Path = Path()
    bounds: Bounds = Bounds()
    extra: dict[str, Any] = attrs.Factory(dict)
    _private: int = 0
    price: Decimal | None = None


class Engine:
    def __init__(self, model_dir: Path, seed: int, threads: int = 1) -> None:
        self.given = (model_dir, seed, threads)


def score(request, *, keyword: str, weight: float = 1.0):
    return (request, keyword, weight)


def build(target=Loss, options=(), where="loss", name="grpo", **injected):
    return construct(target, dict(options), name=name, where=where, injected=injected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Loss()),
        ({"clip": 1}, Loss(clip=1.0)),
        ({"betas": [1, 0.5]}, Loss(betas=(1.0, 0.5))),
        ({"names": ["a", "b"]}, Loss(names=("a", "b"))),
        ({"mode": "hard"}, Loss(mode="hard")),
        ({"limit": None}, Loss(limit=None)),
        ({"limit": 2}, Loss(limit=2.0)),
        ({"either": "x"}, Loss(either="x")),
        ({"path": "a/b"}, Loss(path=Path("a/b"))),
        ({"bounds": {"low": -1}}, Loss(bounds=Bounds(low=-1.0))),
        ({"extra": {"a": [1]}}, Loss(extra={"a": [1]})),
        ({"private": 3}, Loss(private=3)),
        ({"price": "known to type checkers only"}, Loss(price="known to type checkers only")),
    ],
)
def test_options_become_what_the_class_declares(options, expected):
    built = build(options=options)
    assert built == expected
    assert [type(item) for item in attrs.astuple(built)] == [type(item) for item in attrs.astuple(expected)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": "0.2"}, 'loss.clip: expected a number, found the text "0.2"'),
        ({"clip": True}, "loss.clip: expected a number, found true"),
        ({"steps": 1.5}, "loss.steps: expected a whole number, found 1.5"),
        ({"steps": True}, "loss.steps: expected a whole number, found true"),
        ({"strict": "no"}, 'loss.strict: expected true or false, found the text "no"'),
        ({"strict": 1}, "loss.strict: expected true or false, found 1"),
        ({"names": [1]}, "loss.names.0: expected a text, found 1; put it in quotes: '1'"),
        ({"names": "ab"}, 'loss.names: expected a list, found the text "ab"'),
        ({"betas": [1]}, "loss.betas: expected a list of 2, found 1"),
        ({"mode": "firm"}, 'loss.mode: expected soft or hard, found the text "firm"'),
        ({"bounds": {"lo": 1}}, "loss.bounds.lo: unknown option (did you mean low?)"),
        ({"path": 3}, "loss.path: expected a path, found 3"),
        ({"clipp": 1}, "loss.clipp: unknown option of grpo (did you mean clip?)"),
        ({"clip": -1.0}, "loss.clip: grpo: 'clip' must be > 0: -1.0"),
    ],
)
def test_a_wrong_option_is_refused_with_its_place(options, message):
    with pytest.raises(ConfigError) as info:
        build(options=options)
    assert str(info.value) == message


@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [
        ("steps", [1, 2], (1, 2)),
        ("names", ["a", "a"], frozenset("a")),
        ("names", frozenset("a"), frozenset("a")),
        ("weights", {"a": 1}, {"a": 1.0}),
        ("bounds", [{"high": 2}], (Bounds(high=2.0),)),
        ("level", 2, 2),
        ("level", 2.5, 2.5),
        ("level", None, None),
        ("stop", "x", "x"),
        ("stop", ["x"], ["x"]),
        ("optional", {"low": 1}, Bounds(low=1.0)),
        ("window", {"size": 2}, Window(size=2)),
        ("power", 2, 2),
        ("inner", "grpo", Component("grpo")),
        ("inner", {"use": "grpo", "clip": 1}, Component("grpo", {"clip": 1})),
    ],
)
def test_options_of_every_shape_are_converted(option, given, expected):
    found = getattr(build(Schedule, {option: given}), option)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("steps", [1, "2"], '.1: expected a whole number, found the text "2"'),
        ("steps", {1, 2}, ": expected a list, found set {1, 2}"),
        ("pair", [1], ".0: expected a text, found 1; put it in quotes: '1'"),
        ("pair", ["a", "b"], ": expected a list of 1, found 2"),
        ("names", "ab", ': expected a list, found the text "ab"'),
        ("weights", {"a": "x"}, '.a: expected a number, found the text "x"'),
        ("weights", [1], ": expected a section, found a list"),
        ("bounds", [{}, {"hihg": 1}], ".1.hihg: unknown option (did you mean high?)"),
        ("level", "2", ': expected a number or a whole number or null, found the text "2"'),
        ("stop", [1], ".0: expected a text, found 1; put it in quotes: '1'"),
        ("optional", {"low": "x"}, '.low: expected a number, found the text "x"'),
        ("window", {"size": 2, "sizes": 3}, ": expected Window, found a section"),
        ("power", 3, ": expected 1 or 2, found 3"),
        ("power", True, ": expected 1 or 2, found true"),
        ("inner", {"clip": 1}, ".use: missing: the name of the component"),
    ],
)
def test_a_fault_inside_of_an_option_is_named_with_its_place(option, given, message):
    with pytest.raises(ConfigError) as info:
        build(Schedule, {option: given})
    assert str(info.value) == f"loss.{option}{message}"


def test_an_unknown_option_that_is_near_nothing_lists_what_there_is():
    with pytest.raises(ConfigError, match=r"trackers\.zzz: unknown option of tally; its options are high, low$"):
        build(Bounds, {"zzz": 1}, where="trackers", name="tally")
    with pytest.raises(ConfigError, match=r"filters\.zzz: unknown option of all, which has none$"):
        build(object, {"zzz": 1}, where="filters", name="all")


def test_a_callable_tells_the_place_of_each_option():
    lines = {"clipp": "config.yaml:9: loss.clipp", "": "config.yaml:8: loss"}
    with pytest.raises(
        ConfigError, match=r"^config\.yaml:9: loss\.clipp: unknown option of grpo \(did you mean clip\?\)$"
    ):
        build(options={"clipp": 1}, where=lines.__getitem__)
    with pytest.raises(ConfigError, match=r"^config\.yaml:8: loss: grpo needs the option 'seed', a whole number$"):
        build(Engine, where=lines.__getitem__, model_dir=Path())


def test_injected_arguments_go_where_the_signature_has_them():
    assert build(Engine, {"threads": 4}, model_dir=Path("m"), seed=7, run_dir=Path("r")).given == (Path("m"), 7, 4)
    assert build(Bounds, seed=7) == Bounds()


def test_an_option_wins_over_an_injected_argument():
    assert build(Engine, {"seed": 1}, model_dir=Path("m"), seed=7).given == (Path("m"), 1, 1)


def test_a_class_that_takes_any_keyword_gets_all_of_them():
    assert build(dict, {"a": 1}, seed=2) == {"a": 1, "seed": 2}


def test_the_keyword_only_parameters_of_a_function_are_its_options():
    bound = build(score, {"keyword": "x", "weight": 2})
    assert isinstance(bound, functools.partial)
    assert bound("r") == ("r", "x", 2.0)
    with pytest.raises(ConfigError, match=r"scorer\.request: unknown option of mine; its options are keyword, weight"):
        build(score, {"request": 1}, where="scorer", name="mine")
    with pytest.raises(ConfigError, match="needs the option 'keyword', a text"):
        build(score)
    with pytest.raises(ConfigError, match=r"weight: expected a number, found the text"):
        build(score, {"keyword": "x", "weight": "much"})


def test_a_function_without_options_is_returned_as_it_is():
    assert build(len) is len


def test_injected_arguments_are_bound_to_a_function_too():
    def make(directory, *, seed, size="small"):
        return (directory, seed, size)

    assert build(make, {"size": "big"}, directory="d", seed=3, other=1)() == ("d", 3, "big")


def test_an_object_takes_no_options():
    built = Bounds()
    assert build(built) is built
    with pytest.raises(ConfigError, match=r"loss\.low: grpo is an object, not a class: it takes no options"):
        build(built, {"low": 1})


def test_an_error_that_the_constructor_raises_on_purpose_stays_what_it_is():
    class Late:
        def __init__(self) -> None:
            raise RunError("no connection")

    with pytest.raises(RunError, match="no connection"):
        build(Late)


def test_a_plain_class_that_refuses_a_value_says_so_in_its_own_words():
    class Picky:
        def __init__(self, size: int) -> None:
            raise ValueError("size must be a power of two")

    with pytest.raises(ConfigError, match=r"^engine: picky: size must be a power of two$") as info:
        build(Picky, {"size": 3}, where="engine", name="picky")
    assert isinstance(info.value.__cause__, ValueError)


@given(st.floats(allow_nan=False) | st.integers())
def test_numbers_keep_their_value(number):
    assert build(Bounds, {"low": number}).low == float(number)
