import pytest

from agentrl_openhands.tasks import as_text


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"query": "2 + 2?"}, "2 + 2?"),
        ({"messages": [{"role": "user", "content": "2 + 2?"}], "query": "no"}, "2 + 2?"),
        ({"messages": [{"role": "system", "content": "?"}, {"role": "user", "content": "2 + 2?"}]}, "2 + 2?"),
    ],
)
def test_the_input_is_the_one_thing_that_the_user_says(row, text):
    assert as_text(row) == text
    assert as_text({**row, "question": "other"}, "question") == "other"


@pytest.mark.parametrize("content", ["?", [{"type": "image_url"}]])
def test_what_is_no_single_text_is_refused(content):
    said = {"role": "user", "content": content}
    rows = [{"id": "a", "messages": [said, said]}, {"id": "a", "messages": []}, {"id": "a", "answer": "4"}]
    for row in rows + [{"id": "a", "messages": [said]}] * (content != "?"):
        with pytest.raises(ValueError, match=r"^task 'a'"):
            as_text(row)
    with pytest.raises(ValueError, match="no text 'question', which the workflow's input_key names; it has id"):
        as_text({"id": "a"}, "question")
