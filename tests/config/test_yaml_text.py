"""YAML is read by the rules that people expect, with the line of every key."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.config.nodes import Place
from agentrl_core.config.yaml_text import read_file, read_override, write_yaml
from agentrl_core.errors import ConfigError


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        problems = []
        return read_file(path, problems), [str(problem).replace(f"{tmp_path}/", "") for problem in problems]

    return read_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.inf", -math.inf),
        ("8", 8),
        ("+8", 8),
        ("010", 10),
        ("0x10", 16),
        ("0o10", 8),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("on", "on"),
        ("no", "no"),
        ("Yes", "Yes"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ('"8"', "8"),
        ("'true'", "true"),
        ("!!str 8", "8"),
        ("!!float 8", 8.0),
        ("a b", "a b"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_scalars_follow_yaml_1_2(read, text, value):
    node, problems = read(f"key: {text}")
    assert problems == []
    assert node.plain() == {"key": value}
    assert type(node.plain()["key"]) is type(value)


def test_nan_is_a_number(read):
    assert math.isnan(read("key: .nan")[0].plain()["key"])


def test_values_know_the_line_of_their_key(read):
    node, _ = read("# a comment\na:\n  b:\n    1\n  c: [x,\n      y]\n  d: {e: 2}\n")
    section = node.value["a"].value
    lines = [section["b"], section["c"], section["c"].value[1], section["d"].value["e"]]
    assert [item.place.order for item in lines] == [3, 5, 6, 7]
    assert section["b"].place.text.endswith("config.yaml:3")


def test_anchors_are_followed(read):
    node, problems = read("a: &x {b: 1}\nc: *x\n")
    assert (node.plain(), problems) == ({"a": {"b": 1}, "c": {"b": 1}}, [])


def test_aliases_of_aliases_do_not_grow_beyond_all_bounds(read):
    """Nine lines that stand for 9 ** 9 values."""
    lines = ["a: 1", "b0: &b0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 10)]
    with pytest.raises(ConfigError, match=r"config\.yaml:\d+: YAML aliases repeat more than 1,000 values"):
        read("\n".join(lines))


def test_a_section_may_be_repeated_a_few_dozen_times(read):
    options = "".join(f"  o{n}: {n}\n" for n in range(20))
    node, problems = read("a: &a\n" + options + "".join(f"b{n}: *a\n" for n in range(40)))
    assert problems == []
    assert all(section == {f"o{n}": n for n in range(20)} for section in node.plain().values())


def test_every_duplicate_key_is_reported_with_both_lines(read):
    _, problems = read("a: 1\nb: {c: 1, c: 2}\na: 2\n")
    assert [problem.split("config.yaml:", 1)[1] for problem in problems] == [
        "2: c is given twice, first at config.yaml:2",
        "3: a is given twice, first at config.yaml:1",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: !!python/object:os.system x", "the YAML tag tag:yaml.org,2002:python/object:os.system is not supported"),
        ("a: !mine {b: 1}", "the YAML tag !mine is not supported"),
        ("a: !!int abc", "'abc' is not a value of the YAML type int"),
        ("[a, b]: 1", "expected a name before the colon"),
        ("a: &x [*x]", "a section refers to itself"),
        ("a: " + "9" * 5000, "the number 99999999999999999999… is too long"),
        ("a: 0x" + "f" * 5000, "the number 0xffffffffffffffffff… is too long"),
    ],
)
def test_what_is_no_config_is_a_problem_with_its_line(read, text, problem):
    _, problems = read(f"first: 1\n{text}\n")
    assert len(problems) == 1
    assert problems[0].startswith("config.yaml:2: ")
    assert problem in problems[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\n", r"config\.yaml:3: not valid YAML: .*\(column 1\)"),
        ("a:\n\tb: 1\n", r"config\.yaml:2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", r"config\.yaml:2: not valid YAML"),
        ("a: *nowhere", r"config\.yaml:1: not valid YAML: found undefined alias"),
        ("a: \x07", r"config\.yaml:1: not valid YAML"),
        (b"a: 1\nb: \xff\n", r"config\.yaml:2: expected UTF-8 text, found the byte 0xff"),
        ("[" * 1000, r"config\.yaml:1: not valid YAML: nested more than 100 levels deep \(column 101\)"),
        ("".join(f"{' ' * depth}a:\n" for depth in range(200)), r"config\.yaml:100: .* nested more than 100 levels"),
        ("a: &x 1\nb: &x 2", r"config\.yaml:2: not valid YAML: the anchor &x is defined twice"),
        ("a: " + "x" * 1_000_000, r"config\.yaml: expected a config file of at most 1,000,000 bytes"),
    ],
)
def test_text_that_is_not_yaml_is_refused_with_its_line(read, text, message):
    with pytest.raises(ConfigError, match=message):
        read(text)


def test_a_byte_order_mark_is_skipped(read):
    assert read(b"\xef\xbb\xbfa: 1\n")[0].plain() == {"a": 1}


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.yaml: no such config file"):
        read_file(tmp_path / "missing.yaml", [])
    with pytest.raises(ConfigError, match="expected a config file, found a folder"):
        read_file(tmp_path, [])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot read the config file: Not a directory"):
        read_file(tmp_path / "file" / "config.yaml", [])


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("a.b=1", ("a", "b"), 1),
        ("--a.b=1e-6", ("a", "b"), 1e-6),
        ("workflow=agent.py:Agent", ("workflow",), "agent.py:Agent"),
        ("a=b=c", ("a",), "b=c"),
        ("a=", ("a",), None),
        ("a=[1, x]", ("a",), [1, "x"]),
        ("a={b: 1}", ("a",), {"b": 1}),
    ],
)
def test_overrides_are_a_dotted_key_and_a_yaml_value(text, path, value):
    override = read_override(text, 0, [])
    assert (override.path, override.node.plain()) == (path, value)
    assert override.node.place == Place(f"command line: {text}", 10**9, is_override=True)


@pytest.mark.parametrize("text", ["trainer.lr", "=1", "a..b=1", ".a=1", "--", ""])
def test_what_is_no_override_is_refused(text):
    with pytest.raises(ConfigError, match=r"expected KEY=VALUE, for example trainer\.steps=20"):
        read_override(text, 0, [])


def test_an_override_that_is_not_yaml_is_refused():
    with pytest.raises(ConfigError, match=r"command line: a=\[1: not valid YAML"):
        read_override("a=[1", 0, [])


def test_the_password_of_an_address_is_not_shown():
    override = read_override("db_connection_string=mongodb://me:secret@host/db", 0, [])
    assert override.node.place.text == "command line: db_connection_string=mongodb://***@host/db"
    assert override.node.value == "mongodb://me:secret@host/db"


tricky = st.sampled_from(["1e-6", "on", "yes", "0o7", "1_000", "1:30", "2026-01-31", "null", "<<", "=", "~", "", "- a"])
printable = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"]))
plain_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | printable | tricky,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(printable | tricky, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(printable | tricky, plain_data, max_size=4))
def test_written_yaml_reads_back_the_same_here_and_elsewhere(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("yaml") / "config.yaml"
    path.write_text(write_yaml(data), encoding="utf-8")
    problems = []
    assert read_file(path, problems).plain() == (data or {})
    assert problems == []
    assert yaml.safe_load(write_yaml(data)) == data
