"""A model directory becomes a way of talking: ids, ends of turns, continuations."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from agentrl_core.chat import Chat
from agentrl_core.chat.template_check import Stability
from agentrl_core.chat.tokenizer import TextTokenizer
from agentrl_core.errors import ConfigError

USER = {"role": "user", "content": "what is the weather?"}
ASSISTANT = {"role": "assistant", "content": "the answer is 4"}
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}],
}
RESULT = {"role": "tool", "content": "sunny é 晴", "tool_call_id": "c"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]

LLAMA = """{{ bos_token }}{% for m in messages -%}
<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"""

ALTERNATING = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}{% endif %}
{%- if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} <|im_end|>{% endif %}{% endfor %}"""

FORGETFUL = """{% for m in messages %}<|im_start|>{{ m.role + '\\n' }}
{%- set old = m.role == 'assistant' and not loop.last %}
{{ m.content.split('</think>')[-1].lstrip() if old else m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

DEAF = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content if m.role != 'assistant' else m.tool_calls[0].function.name }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

TOOLS_LAST = """{% for m in messages %}{% if loop.last and tools %}{{ tools | tojson }}{% endif -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

PROMPTS_FOR_TOOLS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ ' or tool' if tools else '' }}
{% endif %}"""


def continuation(chat, history, new, tools=(), last="<|im_end|>"):
    ids = chat.continuation_ids(history, new, tools, chat.encode(last)[-1])
    return None if ids is None else chat.decode(ids)


def test_encode_adds_nothing_and_knows_special_tokens(chat):
    ids = chat.encode("<|im_start|>user\né<|im_end|>")
    assert chat.decode(ids) == "<|im_start|>user\né<|im_end|>"
    assert ids[-1] in chat.stop_token_ids
    assert chat.encode("") == []
    assert chat.vocab_size > max(ids)


def test_stop_ids_come_from_all_files_and_from_the_template(make_chat, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    chat = make_chat(eos_token={"content": "<|endoftext|>"})
    assert set(chat.stop_token_ids) == {3, 4, *chat.encode("<|endoftext|><|im_end|>")}


def test_a_reply_ends_before_its_stop_token(chat):
    assert chat.reply_text(chat.encode("hi é<|im_end|>")) == "hi é"
    assert chat.reply_text(chat.encode("hi é")) == "hi é"


@pytest.mark.parametrize("history", [[USER, ASSISTANT], [USER, CALLING, RESULT, ASSISTANT]])
@pytest.mark.parametrize("tools", [(), TOOLS])
@pytest.mark.parametrize("new", [[USER], [RESULT], [RESULT, RESULT], [USER, ASSISTANT, USER], []])
def test_the_continuation_is_what_a_full_render_adds(chat, history, tools, new):
    prompt = chat.render(history[:-1], tools) + "the answer is 4<|im_end|>"
    assert prompt + continuation(chat, history, new, tools) == chat.render([*history, *new], tools)


def test_a_turn_cut_by_its_length_gets_its_end_in_the_prompt(chat):
    text = continuation(chat, [USER, ASSISTANT], [USER], last="x")
    assert text.startswith("<|im_end|>\n<|im_start|>user\n")


def test_a_turn_ended_by_another_stop_token_is_not_ended_twice(make_chat):
    chat = make_chat(eos_token="<|endoftext|>")
    text = continuation(chat, [USER, ASSISTANT], [USER], last="<|endoftext|>")
    assert text.startswith("\n<|im_start|>user\n")


def test_templates_that_trim_and_add_no_line_break(make_chat):
    chat = make_chat(LLAMA, bos_token="<|endoftext|>")
    full = chat.render([USER, ASSISTANT, USER])
    assert full.startswith("<|endoftext|><|im_start|>user")
    assert chat.render([USER]) + "the answer is 4<|im_end|>" + continuation(chat, [USER, ASSISTANT], [USER]) == full
    assert "plain text" not in chat.verdict.changed


def test_blanks_before_the_end_of_turn_are_dropped_with_it(make_chat):
    chat = make_chat(ALTERNATING)
    assert continuation(chat, [USER, ASSISTANT], [USER]) == f"[INST] {USER['content']} [/INST]"
    assert continuation(chat, [USER, ASSISTANT], [USER], last="x") == f" <|im_end|>[INST] {USER['content']} [/INST]"


def test_a_template_that_drops_old_thoughts_is_noticed(make_chat, chat):
    assert make_chat(FORGETFUL).verdict.stability is Stability.PATCHED
    assert make_chat(FORGETFUL).verdict.changed == ("reasoning", "reasoning before tool calls")
    # This vocabulary has a token for thoughts, and its template shows none.
    assert chat.verdict.changed == ("reasoning", "reasoning before tool calls")
    assert make_chat(LLAMA).verdict.forked == ()


def test_a_template_that_hides_the_content_is_continued_by_comparing_renders(make_chat):
    chat = make_chat(DEAF)
    assert (
        continuation(chat, [USER, CALLING], [RESULT])
        == f"\n<|im_start|>tool\n{RESULT['content']}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_moves_tools_to_the_end_sees_the_real_tools(make_chat):
    chat = make_chat(TOOLS_LAST)
    assert json.dumps(TOOLS) in continuation(chat, [USER, ASSISTANT], [USER], TOOLS)


def test_no_way_on_is_none(make_chat):
    assert continuation(make_chat("{{ messages[-1].content }}"), [USER, ASSISTANT], [USER]) is None


def test_continuations_are_encoded_behind_a_special_token_where_beginnings_differ(make_chat, monkeypatch):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "▁a": 1, "<e>": 2, "▁": 3, "\n": 4}, unk_token="▁"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(["<e>"])
    text = TextTokenizer(tokenizer)
    assert text.encode("a") == [1]
    text.anchor_on("<e>")
    assert text.encode_continuation("a") == [0]


def test_cached_prompts_do_not_mix_up_conversations(chat):
    first = chat.prompt_ids([USER], TOOLS)
    assert chat.prompt_ids([USER], TOOLS) == first
    assert chat.decode(chat.prompt_ids([USER])) == chat.render([USER])
    assert chat.decode(first) == chat.render([USER], TOOLS)


def test_cached_continuations_with_and_without_tools_are_kept_apart(make_chat):
    chat = make_chat(PROMPTS_FOR_TOOLS)
    for tools, end in (((), "assistant\n"), (TOOLS, "assistant or tool\n")):
        assert continuation(chat, [USER, ASSISTANT], [USER], tools).endswith(end)


def test_a_stream_decoder_gives_whole_characters(chat):
    decoder = chat.decoder()
    ids = chat.encode("é晴x")
    pieces = [decoder.feed([token]) for token in ids]
    assert "".join(pieces) == "é晴x"
    assert "\ufffd" not in "".join(pieces)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer.json not found"):
        Chat.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer.json: the tokenizers package cannot read this file"):
        Chat.from_directory(tmp_path)


def test_a_model_without_a_template_is_refused(make_chat, tmp_path):
    make_chat()
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match=r"no chat template"):
        Chat.from_directory(tmp_path)


def test_a_template_by_name_prefers_tools(make_chat, tmp_path):
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    make_chat(chat_template=templates)
    (tmp_path / "chat_template.jinja").unlink()
    assert Chat.from_directory(tmp_path).render([USER]) == "with tools"


def test_broken_settings_are_named(make_chat, tmp_path):
    make_chat()
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"generation_config.json: expected a JSON object"):
        Chat.from_directory(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"generation_config.json: not valid JSON"):
        Chat.from_directory(tmp_path)


THOUGHTFUL = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{{ '<think>\\n\\n</think>\\n' if enable_thinking is defined and not enable_thinking else '' }}{% endif %}"""


def test_options_are_variables_of_the_template_in_prompts_and_continuations(make_chat):
    chat = make_chat(THOUGHTFUL)
    off = {"enable_thinking": False}
    for options, end in ((None, "assistant\n"), (off, "assistant\n<think>\n\n</think>\n"), ({}, "assistant\n")):
        for _ in range(2):  # a second time out of the caches
            assert chat.decode(chat.prompt_ids([USER], (), options)).endswith(end)
            ids = chat.continuation_ids([USER, ASSISTANT], [USER], (), chat.stop_token_ids[0], options)
            assert chat.decode(ids) == f"\n<|im_start|>user\nwhat is the weather?<|im_end|>\n<|im_start|>{end}"


def test_an_option_that_changes_the_past_is_looked_at_with_the_past(make_chat):
    template = THOUGHTFUL.replace("{% if add", "{% if count is defined %}{{ messages | length }}{% endif %}{% if add")
    chat = make_chat(template)
    ids = chat.continuation_ids([USER, ASSISTANT], [USER], (), chat.stop_token_ids[0], {"count": True})
    more = chat.continuation_ids([USER, ASSISTANT] * 2, [USER], (), chat.stop_token_ids[0], {"count": True})
    assert [chat.decode(one).count("3<|im_start|>") for one in (ids, more)] == [1, 0]
    assert "5<|im_start|>" in chat.decode(more)
