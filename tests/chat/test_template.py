"""Chat templates render as the models' authors meant them."""

import json

import pytest

from agentrl_core.chat.template import ChatTemplate
from agentrl_core.errors import ConfigError, RequestError

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":  "<é>"}'}}


def test_blocks_leave_no_blank_lines():
    template = ChatTemplate("{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}")
    assert template.render([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]) == "a\nb\n"


def test_tojson_does_not_escape_for_html():
    assert ChatTemplate("{{ tools | tojson }}").render([], [{"a": "<é'>"}]) == '[{"a": "<é\'>"}]'
    assert ChatTemplate("{{ tools | tojson(indent=1) }}").render([], [1]) == "[\n 1\n]"


def test_generation_marks_and_loop_controls_are_understood():
    template = ChatTemplate(
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    )
    assert template.render([{"content": "a"}, {"content": "b"}]) == "a"


def test_special_tokens_and_prompt_flag_are_variables():
    template = ChatTemplate("{{ bos_token }}{% if add_generation_prompt %}>{% endif %}", {"bos_token": "<s>"})
    assert template.render([]) == "<s>>"
    assert template.render([], add_generation_prompt=False) == "<s>"


def test_a_template_that_refuses_says_why():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        template.render([{"role": "user", "content": "a"}])
    assert caught.value.status == 400


def test_a_template_cannot_reach_python():
    with pytest.raises(RequestError, match="unsafe"):
        ChatTemplate("{{ messages.__class__.__mro__ }}").render([])


def test_a_broken_template_is_a_config_error_with_its_line():
    with pytest.raises(ConfigError, match=r"model/chat_template.jinja: line 2"):
        ChatTemplate("a\n{% if %}", where="model/chat_template.jinja")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ c.function.arguments }}", '{"a":  "<é>"}'),  # prints text as it is
        ("{{ c.function.arguments | tojson }}", '{"a": "<é>"}'),  # text would come out quoted
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=<é>"),
    ],
)
def test_arguments_have_the_form_that_the_template_takes(source, expected):
    loop = "{% for m in messages %}{% for c in m.tool_calls or [] %}" + source + "{% endfor %}{% endfor %}"
    message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert ChatTemplate(loop).render([message]) == expected


def test_date_is_available():
    assert len(ChatTemplate("{{ strftime_now('%Y') }}").render([])) == 4


@pytest.mark.slow
def test_renders_like_transformers():
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (
        "{%- for m in messages %}\n    {%- if m.role == 'tool' %}\n        {{- m.content | tojson }}\n"
        "    {%- else %}\n"
        "        {{- '<' + m.role + '>' }}"
        "{% generation %}{{ m.content | trim }}{% endgeneration %}\n    {%- endif %}\n"
        "    {%- for c in m.tool_calls or [] %}\n        {{ c.function.arguments | tojson(indent=2) }}\n"
        "    {% endfor %}\n"
        "{% endfor %}\n{{ tools | tojson }}{{ documents is none }}"
    )
    messages = [
        {"role": "user", "content": " é<b> "},
        {"role": "assistant", "content": "x", "tool_calls": [CALL]},
        {"role": "tool", "content": "<r>"},
    ]
    parsed = json.loads(json.dumps(messages))
    parsed[1]["tool_calls"][0]["function"]["arguments"] = {"a": "<é>"}
    tools = [{"type": "function", "function": {"name": "f"}}]
    expected, _ = render_jinja_template([parsed], tools=tools, chat_template=source)
    assert ChatTemplate(source).render(messages, tools) == expected[0]


@pytest.mark.parametrize("number", [0, 1e308, 2**63, "a", None])
def test_numbers_that_a_template_cannot_reckon_with_are_refused(number):
    template = ChatTemplate("{{ 'x' * (1 // budget) }}{{ 'x' * (budget ** 9) }}")
    with pytest.raises(RequestError, match="refused"):
        template.render([], options={"budget": number})


def test_half_a_character_in_a_prompt_is_refused():
    template = ChatTemplate("{{ messages[0].content }}")
    with pytest.raises(RequestError, match="surrogate"):
        template.render([{"role": "user", "content": "\ud800"}])


def test_a_field_is_looked_up_behind_a_methods_name_and_a_missing_one_is_undefined():
    fields = "{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}"
    template = ChatTemplate("{% for m in messages %}" + fields + "{{ m.name is defined }}{% endfor %}")
    assert template.render([{"items": "a", "get": "b"}]) == "items=a;get=b;False"
