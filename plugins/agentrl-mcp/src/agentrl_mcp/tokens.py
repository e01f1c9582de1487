"""Places of OAuth tokens: the memory of the process, or a file that its owner alone can read."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken

if TYPE_CHECKING:
    from mcp.client.auth.oauth2 import OAuthContext

    from agentrl_mcp.oauth import OAuth


def default_path(url: str) -> str:
    """Return the file for the tokens of a server."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return f"{state}/agentrl/mcp-tokens/{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"


@attrs.define
class TokenMemory:
    """Tokens of a client that gets new ones without a person."""

    tokens: OAuthToken | None = attrs.field(default=None, repr=False)
    client: OAuthClientInformationFull | None = attrs.field(default=None, repr=False)

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep the tokens."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client's registration."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep the client's registration."""
        self.client = client_info


class TokenFile(TokenMemory):
    """Tokens of a login, for later runs and for other processes of this one."""

    context: OAuthContext
    """State of the SDK's client, of which the file keeps what the SDK itself would forget."""

    def __init__(self, path: str, options: OAuth, secret: str | None) -> None:
        super().__init__()
        self._path = Path(path).expanduser()
        if options.client_id:
            self.client = OAuthClientInformationFull(
                client_id=options.client_id,
                client_secret=secret,
                token_endpoint_auth_method="client_secret_basic" if secret else "none",
                issuer=options.issuer or None,
            )
        self._is_registered = bool(options.client_id)

    def restore(self, context: OAuthContext) -> None:
        """Take over tokens that the file has and the client does not, such as those that another process renewed."""
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            tokens = OAuthToken.model_validate(kept["tokens"])
            client = OAuthClientInformationFull.model_validate(kept["client"])
            metadata = kept["metadata"] and OAuthMetadata.model_validate(kept["metadata"])
            expires_at = kept["expires_at"]
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError):
            # Not the error itself, which quotes the file.
            raise ValueError(f"{self._path} has no tokens that can be read; remove it, and log in again") from None
        if tokens == context.current_tokens:
            return
        self.tokens, self.client = tokens, self.client if self._is_registered else client
        context.current_tokens, context.client_info = self.tokens, self.client
        context.token_expiry_time, context.oauth_metadata = expires_at, metadata

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep the tokens, with what it takes to renew them."""
        self.tokens = tokens
        kept: dict[str, Any] = {
            "tokens": tokens.model_dump(mode="json"),
            "client": self.client and self.client.model_dump(mode="json"),
            "expires_at": self.context.token_expiry_time,
            "metadata": self.context.oauth_metadata and self.context.oauth_metadata.model_dump(mode="json"),
        }
        _write(self._path, json.dumps(kept))


def _write(path: Path, text: str) -> None:
    """Write a file that its owner alone can read; other processes see the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
