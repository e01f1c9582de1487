"""Build the replies of `GET /v1/models`, with the fields of both OpenAI's and Anthropic's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

POLICY = "default"
"""Name of the policy; any other name that is no upstream's means the policy, too."""


def list_models(upstreams: Sequence[str]) -> dict[str, Any]:
    """Build the list of all models: the policy and the upstreams."""
    models = [describe_model(name, upstreams) for name in (POLICY, *upstreams)]
    page = {"has_more": False, "first_id": models[0]["id"], "last_id": models[-1]["id"]}
    return {"object": "list", "data": models, **page}


def describe_model(name: str, upstreams: Sequence[str]) -> dict[str, Any]:
    """Build the description of one model."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "upstream" if name in upstreams else "agentrl",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }
