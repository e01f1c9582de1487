"""Images in messages: places in the prompt, pictures for the engine."""

import shutil

import pytest

from agentrl_core.chat import Chat

RED, BLUE = "data:image/png;base64,cmVk", "data:image/png;base64,Ymx1ZQ=="

SEEING = """{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}
{%- if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def asking(*parts):
    return {"role": "user", "content": [{"type": "text", "text": p} if " " in p else image(p) for p in parts]}


@pytest.fixture(params=["seeing"])
def chat(request, model_dir, tmp_path):
    directory = shutil.copytree(model_dir, tmp_path / "model")
    if request.param == "seeing":
        (directory / "chat_template.jinja").write_text(SEEING)
    return Chat.from_directory(directory)


def test_the_prompt_has_places_and_the_engine_the_pictures(gateway, session, send, engine, chat, store):
    reply = send(session, {"messages": [asking("what is ", RED, " and ", BLUE)]})
    assert reply.status_code == 200
    (generation,) = engine.log
    assert chat.decode(generation.request.prompt_ids) == (
        "<|im_start|>user\nwhat is <image> and <image><|im_end|>\n<|im_start|>assistant\n"
    )
    assert generation.request.images == (RED, BLUE)
    assert store.interactions[0].messages[0]["content"][1] == image(RED)


def test_a_conversation_with_images_goes_on_from_exact_ids(gateway, session, send, engine):
    first = [asking("what is ", RED)]
    answer = send(session, {"messages": first}).json()["choices"][0]["message"]
    send(session, {"messages": [*first, answer, asking("and this ", BLUE)]})
    one, two = engine.log
    assert two.request.prompt_ids[: len(one.request.prompt_ids) + len(one.ids)] == one.request.prompt_ids + one.ids
    assert two.request.images == (RED, BLUE)


def test_another_picture_is_another_conversation(gateway, session, send, store):
    first = [asking("what is ", RED)]
    answer = send(session, {"messages": first}).json()["choices"][0]["message"]
    send(session, {"messages": [asking("what is ", BLUE), answer, asking("and this ", BLUE)]})
    assert store.interactions[1].parent is None


def test_parts_without_images_are_text(gateway, session, send, engine, chat):
    send(session, {"messages": [asking("one ", "two ")]})
    assert "one two <|im_end|>" in chat.decode(engine.log[0].request.prompt_ids)


@pytest.mark.parametrize("url", ["https://example.com/a.png", "file:///etc/passwd", "data:text/html,x", 1, None])
def test_the_gateway_fetches_no_images(gateway, session, send, engine, url):
    reply = send(session, {"messages": [{"role": "user", "content": [image(url)]}]})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "messages[0].content[0].image_url.url"
    assert engine.log == []


@pytest.mark.parametrize("chat", ["blind"], indirect=True)
def test_a_text_model_refuses_images(gateway, session, send, engine):
    reply = send(session, {"messages": [asking("what is ", RED)]})
    assert reply.status_code == 400
    assert "does not support images" in reply.json()["error"]["message"]
    assert engine.log == []


def test_a_response_takes_images_in_messages_and_results(session, send, engine, store):
    def picture(url):
        return {"type": "input_image", "image_url": url, "detail": "auto"}

    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "what is "}, picture(RED)]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": [picture(BLUE)]},
    ]
    response = send(session, {"input": items}, path="/v1/responses").json()
    send(session, {"input": "and now?", "previous_response_id": response["id"]}, path="/v1/responses")
    one, two = engine.log
    assert one.request.images == two.request.images == (RED, BLUE)
    assert two.request.prompt_ids[: len(one.request.prompt_ids) + len(one.ids)] == one.request.prompt_ids + one.ids
    shown = send(session, None, path=f"/v1/responses/{response['id']}/input_items", method="GET").json()["data"]
    assert [item["type"] for item in shown] == ["function_call_output", "function_call", "message"]
    assert shown[2]["content"][1]["image_url"] == RED
