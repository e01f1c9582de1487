"""Tools that a chat template has no place for: refused, or answered without, counted and told in the trace."""

import shutil

import pytest

from agentrl_core.chat import Chat

WITHOUT_TOOLS = """{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
WITH_A_SYSTEM_MESSAGE = """{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% if tools and m.role == 'system' %}{{ tools | tojson }}{% endif %}<|im_end|>
{% endfor %}"""
REFUSING = "{%- if tools %}{{ raise_exception('no tools, please') }}{% endif %}{{ messages[0].content }}"


def with_template(model_dir, tmp_path, template):
    directory = shutil.copytree(model_dir, tmp_path / "model")
    (directory / "chat_template.jinja").write_text(template)
    return Chat.from_directory(directory)


@pytest.mark.parametrize(
    ("template", "takes"), [(WITHOUT_TOOLS, False), (WITH_A_SYSTEM_MESSAGE, True), (REFUSING, True)]
)
def test_a_template_that_shows_or_refuses_tools_does_not_drop_them(model_dir, tmp_path, template, takes):
    assert with_template(model_dir, tmp_path, template).takes_tools is takes


class TestWithoutTools:
    @pytest.fixture
    def chat(self, model_dir, tmp_path):
        return with_template(model_dir, tmp_path, WITHOUT_TOOLS)

    def test_a_call_with_tools_is_refused_with_what_to_do(self, gateway, session, send, engine, tools):
        reply = send(session, {"messages": [{"role": "user", "content": "1 + 1?"}], "tools": tools})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("tools_not_supported", "tools")
        assert "drops tools: the policy would never see add" in error["message"]
        assert "gateway.unseen_tools: allow" in error["message"]
        assert engine.log == []
        assert "calls that offer tools are refused" in gateway.tools_notice

    def test_a_call_without_tools_to_call_is_answered(self, gateway, session, send, tools):
        messages = [{"role": "user", "content": "1 + 1?"}]
        assert send(session, {"messages": messages}).status_code == 200
        assert send(session, {"messages": messages, "tools": tools, "tool_choice": "none"}).status_code == 200
        assert gateway.calls_with_unseen_tools == 0

    def test_where_it_is_allowed_it_is_counted_and_in_the_trace(
        self, make_gateway, open_session, send_to, store, tools
    ):
        gateway = make_gateway(unseen_tools="allow")
        session = open_session(gateway)
        messages = [{"role": "user", "content": "1 + 1?"}]
        for body in ({"messages": messages, "tools": tools}, {"messages": messages}):
            assert send_to(gateway, session, body).status_code == 200
        assert gateway.calls_with_unseen_tools == 1
        assert [interaction.requested for interaction in store.interactions] == [
            {"tools": "add: not in the prompt, as the chat template drops tools"},
            {},
        ]
        assert gateway.tools_notice in gateway.notices(offers_tools=True)
        assert gateway.tools_notice not in gateway.notices(offers_tools=False)
        assert "calls that offer tools are answered without" in gateway.tools_notice


def test_a_template_with_tools_needs_no_notice(gateway, session, send, tools):
    body = {"messages": [{"role": "user", "content": "1 + 1?"}], "tools": tools}
    assert send(session, body).status_code == 200
    assert (gateway.tools_notice, gateway.calls_with_unseen_tools) == ("", 0)
