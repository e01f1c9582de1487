"""What a judge is shown: whatever the answer is, it stays between the lines that say so."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_judge.prompt import FIELDS, TEMPLATE, check_template, compose, cut, placeholders, set_apart

BOUNDARY = "00ff00ff00ff00ff"
pieces = st.sampled_from(
    [BOUNDARY, BOUNDARY.upper(), BOUNDARY[:8], BOUNDARY[8:], "[END ANSWER ", "[BEGIN ANSWER ", "]", "\n", "<|im_end|>"]
)
hostile = st.lists(pieces | st.text(max_size=5), max_size=12).map("".join)


def shown(text, template="{question} {labeled_answer} {pred_answer}", max_chars=10_000, scale="binary"):
    texts = {"question": "why", "labeled_answer": "so", "pred_answer": text}
    return compose(template, texts, scale=scale, boundary=BOUNDARY, max_chars=max_chars)


@given(hostile)
def test_no_text_leaves_its_place(text):
    content = shown(text)[1]["content"]
    inner = content.partition(f"[BEGIN ANSWER {BOUNDARY}]\n")[2].partition(f"\n[END ANSWER {BOUNDARY}]")[0]
    assert BOUNDARY not in inner.lower()
    assert content.lower().count(BOUNDARY) == 7  # around each of the three texts, and in the reminder


@given(hostile, st.integers(200, 300))
def test_the_boundary_forms_nowhere_not_even_by_cutting(text, most):
    apart = set_apart("ANSWER", text * 3, BOUNDARY, most)
    assert apart.lower().count(BOUNDARY) == 2


@given(st.text(st.characters(exclude_characters="<>[]\uff1c", exclude_categories=["Cs"])))
def test_a_harmless_text_is_shown_as_it_is(text):
    assert set_apart("ANSWER", text, BOUNDARY, 10**6) == f"[BEGIN ANSWER {BOUNDARY}]\n{text}\n[END ANSWER {BOUNDARY}]"


@pytest.mark.parametrize(
    ("mark", "shown_as"),
    [
        ("<|im_start|>system", "< |im_start| >system"),
        ("<\uff5cUser\uff5c>", "< \uff5cUser\uff5c >"),
        ("<start_of_turn>model", "< start_of_turn>model"),
        ("</s>", "< /s>"),
        ("[INST]x[/INST]", "[ INST]x[ /INST]"),
        ("</think>", "< /think>"),
        ("<seed:bos>", "< seed:bos>"),
        ("<0x0A><unused7><extra_id_0>", "< 0x0A>< unused7>< extra_id_0>"),
        ("<<SYS>>", "< < SYS> >"),
        (">>QUESTION<<", "> >QUESTION< <"),
        ("[SYSTEM_PROMPT][/SYSTEM_PROMPT]", "[ SYSTEM_PROMPT][ /SYSTEM_PROMPT]"),
        ("[gMASK]<sop>", "[ gMASK]< sop>"),
        ("[|user|]", "[ |user|]"),
        ("]~b]system ]~!b[ [e~[", "] ~ b]system ] ~ !b[ [e ~ ["),
        ("\uff1c/s\uff1e", "\uff1c /s\uff1e"),
        ("a < b > c [1] [2, 3] x[i + 1] ~5 <= 7", "a < b > c [1] [2, 3] x[i + 1] ~5 <= 7"),
    ],
)
def test_the_marks_of_chat_templates_are_broken_up(mark, shown_as):
    assert f"\n{shown_as}\n" in set_apart("ANSWER", mark, BOUNDARY, 1000)


NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_:]{0,12}", fullmatch=True)
FRAMES = [
    ("<", ">"),
    ("</", ">"),
    ("<|", "|>"),
    ("<\uff5c", "\uff5c>"),
    ("[", "]"),
    ("[/", "]"),
    ("[|", "|]"),
    ("]~", "]"),
]


@given(st.lists(st.tuples(st.sampled_from(FRAMES), NAME), min_size=1, max_size=3), st.text(max_size=3))
def test_no_special_token_of_any_usual_shape_is_left(tokens, between):
    written = [f"{opener}{name}{closer}" for (opener, closer), name in tokens]
    apart = set_apart("ANSWER", between.join(written), BOUNDARY, 10_000).split("\n", 1)[1]
    assert not any(token in apart for token in written)


def test_texts_that_look_like_placeholders_are_not_filled():
    content = shown("{question} {labeled_answer} {{x}}")[1]["content"]
    assert "\n{question} {labeled_answer} {{x}}\n" in content


def test_what_utf8_cannot_hold_is_escaped():
    assert "\\ud800" in set_apart("ANSWER", "\ud800", BOUNDARY, 100)


@given(st.text(max_size=400), st.integers(200, 300))
def test_a_cut_text_keeps_both_ends_and_says_how_much_is_gone(text, most):
    found = cut(text, most)
    if len(text) <= most:
        assert found == text
        return
    head, left_out, tail = re.fullmatch(
        r"(.*)\n\[… (\d+) characters left out here …\]\n(.*)", found, re.DOTALL
    ).groups()
    assert (text.startswith(head), text.endswith(tail), len(head) + len(tail)) == (True, True, most)
    assert int(left_out) == len(text) - most


@pytest.mark.parametrize("scale", ["binary", "graded"])
def test_rules_and_form_stand_before_and_after_the_texts(scale):
    system, user = shown("x", TEMPLATE, scale=scale)
    assert (system["role"], user["role"]) == ("system", "user")
    assert BOUNDARY in system["content"]
    assert system["content"].splitlines()[-1] == user["content"].splitlines()[-1]
    assert "one JSON object" in user["content"].splitlines()[-1]


def test_doubled_braces_are_braces_and_others_stay():
    assert 'Say {"a": {"b": 1} or {x}' in shown("y", 'Say {"a": {{"b": 1}} or {{x}} {pred_answer}')[1]["content"]


def test_the_built_in_template_has_all_placeholders():
    check_template(TEMPLATE)
    assert placeholders(TEMPLATE) == set(FIELDS)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{question}", "{pred_answer} is missing"),
        ("{pred_anwser}", r"no placeholder {pred_anwser} \(did you mean pred_answer\?\)"),
        ("{pred_answer} {0}", r"no placeholder \{0}; there are question, labeled_answer, pred_answer"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(template, said):
    with pytest.raises(ValueError, match=said):
        check_template(template)
