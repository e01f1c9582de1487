"""An MCP server that wants OAuth, and the authorization server that it trusts, on one port of this process."""

import base64
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

STATELESS = "2026-07-28"


class OAuthServer:
    """Gives out tokens `token-1`, `token-2`, …, and accepts those in `valid`."""

    def __init__(self):
        self.valid, self.refreshes, self.grants, self.scope = set(), {}, [], ""
        self.numbers = itertools.count(1)
        self.expires_in = 3600
        self.refuses = ""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                owner.answer(self, {})

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                is_json = "json" in self.headers["content-type"]
                form = {key: values[0] for key, values in parse_qs(body.decode()).items()}
                owner.answer(self, json.loads(body) if is_json else form)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.url = f"{self.base}/mcp"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler, body):
        path = urlsplit(handler.path)
        status, headers, found = 200, {}, {}
        if path.path.startswith("/.well-known/oauth-protected-resource"):
            found = {"resource": self.url, "authorization_servers": [self.base]}
        elif path.path.startswith("/.well-known/oauth-authorization-server"):
            found = {
                "issuer": self.base,
                "authorization_endpoint": f"{self.base}/authorize",
                "token_endpoint": f"{self.base}/token",
                "registration_endpoint": f"{self.base}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic", "none", "private_key_jwt"],
            }
        elif path.path == "/register":
            status, found = 201, body | {"client_id": "registered", "token_endpoint_auth_method": "none"}
        elif path.path == "/authorize":
            asked = {key: values[0] for key, values in parse_qs(path.query).items()}
            told = {"error": "access_denied"} if self.refuses else {"code": "code-1"}
            status = 302
            headers["location"] = f"{asked['redirect_uri']}?{urlencode(told | {'state': asked['state']})}"
        elif path.path == "/token":
            status, found = self.token(body, handler.headers.get("authorization", ""))
        else:
            status, headers, found = self.call(handler.headers.get("authorization", ""), body)
        data = json.dumps(found).encode()
        handler.send_response(status)
        for key, value in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            handler.send_header(key, value)
        handler.end_headers()
        handler.wfile.write(data)

    def token(self, form, basic):
        secret = base64.b64decode(basic.partition(" ")[2]).decode()
        self.grants.append((form["grant_type"], secret or form.get("client_id", ""), "client_assertion" in form))
        if form["grant_type"] == "refresh_token" and form["refresh_token"] not in self.refreshes:
            return 400, {"error": "invalid_grant"}
        if secret.endswith(":wrong"):
            return 401, {"error": "invalid_client"}
        number = next(self.numbers)
        self.valid = {f"token-{number}"}
        self.refreshes = {f"refresh-{number}": True}
        return 200, {
            "access_token": f"token-{number}",
            "token_type": "Bearer",
            "expires_in": self.expires_in,
            "refresh_token": f"refresh-{number}",
            **({"scope": form["scope"]} if "scope" in form else {}),
        }

    def call(self, authorization, message):
        if authorization.removeprefix("Bearer ") not in self.valid:
            place = f"{self.base}/.well-known/oauth-protected-resource/mcp"
            return 401, {"www-authenticate": f'Bearer resource_metadata="{place}"'}, {}
        match message["method"]:
            case "server/discover":
                found = {"supportedVersions": [STATELESS], "capabilities": {"tools": {}}, "resultType": "complete"}
            case "tools/list":
                found = {"tools": [{"name": "who", "inputSchema": {"type": "object"}}]}
            case _:
                found = {"content": [{"type": "text", "text": authorization}]}
        return 200, {}, {"jsonrpc": "2.0", "id": message["id"], "result": found}
