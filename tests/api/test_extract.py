r"""Answers are taken out of replies as AgentCPM's `extract_last_answer` does, but for escaped braces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.api.extract import extract_answer, find_answer, without_thoughts

AGENTCPM = [
    ("<answer>a</answer> <answer>b</answer>", "answer", "b"),
    ("<answer>a <answer>b</answer>", "answer", "b"),
    ("<answer> x", "answer", ""),
    ("<answer>\n x \n</answer>", "answer", "\n x \n"),
    (r"so \boxed{\frac{1}{2}} end", "boxed", r"\frac{1}{2}"),
    (r"\boxed{1} then \fbox{2}", "boxed", "1"),
    (r"\fbox{a{b}c}", "boxed", "a{b}c"),
    (r"\boxed 5", "boxed", ""),
    (r"\boxed{x\}}", "boxed", "x\\"),
    (r"\boxed{unclosed {", "boxed", ""),
    ("<final>z</final>", "final", "z"),
    ("</answer>", "answer", ""),
    (r"\boxed{}", "boxed", ""),
]
r"""(content, schema, what AgentCPM's unmodified function returned)."""

DEVIATIONS = {
    # AgentCPM counts an escaped brace as a closing one and returns a dangling backslash. With `\left\{ x \right.`
    # the same counting finds no end at all and loses a right answer.
    r"\boxed{x\}}": r"x\}",
}


@pytest.mark.parametrize(("content", "schema", "answer"), AGENTCPM)
def test_answers_are_those_of_agentcpm(content, schema, answer):
    assert extract_answer(content, schema) == DEVIATIONS.get(content, answer)


def test_deviations_are_real():
    recorded = {content: answer for content, _, answer in AGENTCPM}
    assert all(recorded[content] != answer for content, answer in DEVIATIONS.items())


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{a \\}", r"a \\"),
        (r"\boxed{1} and \boxed{2", ""),
        (r"\boxed{\boxed{1}}", "1"),
        ("\\boxed{a\n{b}\n}", "a\n{b}\n"),
        ("", ""),
    ],
)
def test_boxed_answers_end_where_latex_ends_them(content, answer):
    assert extract_answer(content, "boxed") == answer


@pytest.mark.parametrize(
    "reply",
    [
        "So <answer>42</answer></answer>",
        "<answer>42</answer> I closed the tag with </answer>.",
        "<answer>1</answer> no: <answer>42</answer> </answer> 7",
    ],
)
def test_a_closing_tag_too_many_changes_no_answer(reply):
    assert find_answer(reply).text == "42"


def test_the_tag_answer_is_the_default():
    assert extract_answer("<answer>4</answer>") == "4"


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("<answer>a</answer> tail </answer>", "a"),
        ("<answer>a</answer> <answer>b", "a"),
        ("</answer><answer>a", ""),
        ("<ANSWER>a</ANSWER>", ""),
        ("<answer></answer>", ""),
    ],
)
def test_tags_pair_from_the_end(content, answer):
    assert extract_answer(content, "answer") == answer


free_text = st.text(st.characters(codec="utf-8", exclude_characters="<>"))
braced = st.recursive(
    st.text(st.characters(codec="utf-8", exclude_characters="{}\\"), max_size=5)
    | st.sampled_from([r"\{", r"\}", r"\\"]),
    lambda inner: st.lists(inner, max_size=3).map("".join) | inner.map(lambda text: f"{{{text}}}"),
)


@given(free_text, free_text, free_text, st.sampled_from(["answer", "final", "x.y-z"]))
def test_whatever_stands_in_the_last_tags_comes_back(before, answer, after, tag):
    assert extract_answer(f"<{tag}>no</{tag}>{before}<{tag}>{answer}</{tag}>{after}", tag) == answer


@given(
    free_text,
    braced,
    st.text(st.characters(exclude_characters="\\", codec="utf-8")),
    st.sampled_from(["boxed", "fbox"]),
)
def test_whatever_stands_balanced_in_the_box_comes_back(before, answer, after, box):
    before = before.replace("\\", "")
    assert extract_answer(f"{before}\\{box}{{{answer}}}{after}", "boxed") == answer


pieces = st.sampled_from([*"{}\\ab", "\\boxed{", "\\fbox{", "<a>", "</a>"])


@given(st.lists(pieces).map("".join))
def test_an_answer_is_always_a_part_of_the_text(text):
    assert extract_answer(text, "boxed") in text
    assert extract_answer(text, "a") in text


@pytest.mark.parametrize(
    ("reply", "schema", "answer", "source"),
    [
        ("A5", "", "A5", "reply"),
        (" 42\n", "", "42", "reply"),
        ("so <answer>4</answer>.", "", "4", "schema"),
        ("so <answer></answer>.", "", "", "schema"),
        ("so <answer>4", "", "so <answer>4", "reply"),
        (r"so \boxed{4}", "", r"so \boxed{4}", "reply"),
        ("A5", "answer", "", "nowhere"),
        ("A5", "boxed", "", "nowhere"),
        (r"so \boxed{4}", "boxed", "4", "schema"),
        ("<final>4</final>", "final", "4", "schema"),
        ("<answer>4</answer>", "final", "", "nowhere"),
        ("<think>is it <answer>3</answer>? no</think>\n\n4", "", "4", "reply"),
        ("it opened in the prompt</think>4", "", "4", "reply"),
        ("<think>on and on, 4", "", "", "reply"),
        ("<think>a</think>4<think>b</think>2", "", "42", "reply"),
        ("[THINK]a[/THINK]4", "", "4", "reply"),
        ("<think><answer>3</answer></think>", "answer", "", "nowhere"),
        ("", "", "", "reply"),
    ],
)
def test_without_a_tag_the_whole_reply_is_the_answer_unless_a_schema_is_named(reply, schema, answer, source):
    found = find_answer(reply, schema)
    assert (found.text, found.source) == (answer, source)


thought_pieces = st.sampled_from(["<think>", "</think>", "[THINK]", "[/THINK]", "a", "4 ", "\n"])


@given(st.lists(thought_pieces).map("".join))
def test_no_tag_of_thoughts_outlives_their_removal_and_nothing_is_added(text):
    said = without_thoughts(text)
    assert not any(tag in said for tag in ("<think>", "</think>", "[THINK]", "[/THINK]"))
    remaining = iter(text)
    assert all(char in remaining for char in said)


@given(st.text(st.characters(codec="utf-8", exclude_characters="<>[]")), st.sampled_from(["", "final", "boxed"]))
def test_text_without_any_tag_is_an_answer_only_where_no_schema_is_named(text, schema):
    text = text.replace("\\", "")
    found = find_answer(text, schema)
    assert found.text == ("" if schema else text.strip())
