"""The OpenAPI document says what the gateway does: it is fuzzed through it."""

import asyncio
from collections import defaultdict

import hypothesis
import jsonschema
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from agentrl_core.gateway.dialects.fields import Fields

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ROUTES = {
    "/health": {"GET"},
    "/v1/chat/completions": {"POST"},
    "/v1/completions": {"POST"},
    "/v1/responses": {"POST"},
    "/v1/responses/{response_id}": {"GET"},
    "/v1/responses/{response_id}/input_items": {"GET"},
    "/v1/messages": {"POST"},
    "/v1/messages/count_tokens": {"POST"},
    "/v1/models": {"GET"},
    "/v1/models/{name}": {"GET"},
    "/v1/openapi.json": {"GET"},
    "/rl/start_session": {"POST"},
    "/rl/end_session": {"POST"},
    "/rl/set_reward": {"POST"},
    "/rl/sessions": {"GET"},
    "/export_trajectories": {"POST"},
    "/grant_capacity": {"POST"},
    "/rl/members/open_session": {"POST"},
    "/rl/members/close_session": {"POST"},
    "/rl/members/generate": {"POST"},
    "/rl/members/status": {"GET"},
    "/rl/members/tokenizer": {"GET"},
}
"""All there are, by hand."""

OWN = {"/rl/end_session", "/rl/set_reward", "/rl/members/generate"}
"""Of the session that was opened last; the other routes outside /v1 are the admin's."""


TURNS = [{"role": "user", "content": "hello"}]
BODIES = {
    "/v1/chat/completions": {"messages": TURNS},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": TURNS, "max_tokens": 5, "tool_choice": {"type": "none"}},
    "/v1/messages/count_tokens": {"messages": TURNS},
    "/rl/start_session": {"task_id": "a"},
    "/rl/set_reward": {"reward": 1.0},
    "/export_trajectories": {"session_id": "gone"},
    "/rl/members/open_session": {
        "run_id": "run",
        "member_id": "m",
        "record_id": "r",
        "group_id": "g",
        "seed_key": [0, 1],
    },
    "/rl/members/close_session": {"record_id": "r"},
    "/rl/members/generate": {"prompt_ids": "AQAAAAIAAAA="},
}
"""Bodies that each route reads to the end."""


def get(gateway, path, **headers):
    async def asking():
        return await gateway.http_client.get(gateway.url + path, headers=headers)

    return asyncio.run(asking())


@pytest.fixture
def document(rest):
    return get(rest.gateway, "/v1/openapi.json", authorization=f"Bearer {rest.key}").json()


def test_it_is_for_sessions_and_the_admin_only(rest, document):
    key = asyncio.run(rest.start())["api_key"]
    assert get(rest.gateway, "/openapi.json", **{"x-api-key": key}).json() == document
    assert get(rest.gateway, "/openapi.json").status_code == 401
    assert get(rest.gateway, "/openapi.json", authorization="Bearer sk-other").status_code == 401


def test_it_is_valid(document):
    schemathesis.openapi.from_dict(document).validate()


def test_it_names_every_route(rest, document):
    told = {path: {method.upper() for method in item} for path, item in document["paths"].items()}
    assert told == ROUTES
    api = rest.gateway.router
    known = {*api._dialects, *api._pages}
    assert known == {path.removeprefix("/v1") for path in ROUTES if "{" not in path}


def test_operations_have_ids_of_their_own(document):
    ids = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(set(ids)) == len(ids)
    assert all(name.isidentifier() for name in ids)


def test_only_health_needs_no_key(rest, document):
    for path, item in document["paths"].items():
        for method, operation in item.items():
            open_to_all = operation.get("security") == []
            url = rest.gateway.url + path.format(response_id="resp_1", name="default")
            reply = asyncio.run(rest.gateway.http_client.request(method, url, content=b"{}"))
            assert (reply.status_code != 401) == open_to_all == (path == "/health")


@pytest.fixture
def reads(monkeypatch):
    """Record the paths of all fields that are read."""
    found = set()
    take = Fields.take

    def recorded(fields, name):
        found.add(f"{fields._path}{name}")
        return take(fields, name)

    monkeypatch.setattr(Fields, "take", recorded)
    return found


def test_it_has_the_fields_that_routes_read_and_no_others(rest, document, reads):
    posts = {path: item["post"] for path, item in document["paths"].items() if "post" in item}
    assert {path for path, operation in posts.items() if "requestBody" in operation} == set(BODIES)
    for path, body in BODIES.items():
        admins = not path.startswith("/v1") and path not in OWN
        key = rest.key if admins else asyncio.run(rest.start())["api_key"]
        reads.clear()
        asyncio.run(rest.post(path, body, key=key))
        reference = posts[path]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        properties = document["components"]["schemas"][reference.rpartition("/")[2]]["properties"]
        assert {name for name in reads if "." not in name} == set(properties), path
        for outer, _, inner in (name.partition(".") for name in reads if "." in name):
            assert inner in properties[outer]["properties"], path


def sender(operation, mode, headers, statuses, examples):
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        response = case.call(headers=headers)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    return send


def fuzz(rest, examples):
    """Send generated requests, valid and not, by every route; return the statuses that came back."""
    generation = GenerationConfig(with_security_parameters=False, deterministic=True)
    config = SchemathesisConfig(projects=ProjectsConfig(default=ProjectConfig(generation=generation)))
    content = get(rest.gateway, "/openapi.json", authorization=f"Bearer {rest.key}").json()
    schema = schemathesis.openapi.from_dict(content, config=config)
    schema.config.update(base_url=rest.gateway.url)
    statuses = defaultdict(set)
    for result in schema.get_all_operations():
        operation = result.ok()
        key = asyncio.run(rest.start())["api_key"]
        admins = not operation.path.startswith("/v1") and operation.path not in OWN
        headers = {"Authorization": f"Bearer {rest.key if admins else key}"}

        modes = list(schemathesis.GenerationMode) if list(operation.body) else [schemathesis.GenerationMode.POSITIVE]
        for mode in modes:
            sender(operation, mode, headers, statuses[operation.path], examples)()
    return statuses


CALLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::hypothesis.errors.HypothesisWarning")
def test_no_generated_request_gets_what_is_not_documented(rest):
    statuses = fuzz(rest, examples=10)
    assert set(statuses) == set(ROUTES)
    for path in CALLS:
        assert {200, 400} <= statuses[path], path


def test_forms_of_text_are_valid_if_they_are_taken(document, send, session):
    schemas = document["components"]["schemas"]
    forms = [{}, {"type": "text"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": {}}}]
    forms += [{"type": "json_schema", "schema": {}}]
    for path, name, body_of in (
        ("/v1/chat/completions", "ChatRequest", lambda form: {"messages": TURNS, "response_format": form}),
        ("/v1/responses", "ResponsesRequest", lambda form: {"input": "hello", "text": {"format": form}}),
    ):
        valid = jsonschema.Draft202012Validator(schemas[name]).is_valid
        taken = [send(session, body_of(form), path=path).status_code == 200 for form in forms]
        assert [valid(body_of(form)) for form in forms] == taken
        assert sum(taken) == 2
