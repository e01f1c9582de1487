"""Ask a model server what it serves, pause it, and have it load weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.engines.servers import Ask, ServerFormat, error_text, read_json
from agentrl_core.errors import EngineError
from agentrl_core.server_client import ExchangeError, ServerClient

if TYPE_CHECKING:
    import httpx2

    from agentrl_core.engines.servers import Top

_OK = 200
_PROBE = Ask(
    id="agentrl-probe",
    request_id="probe",
    prompt_ids=(0,),
    max_tokens=1,
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    stop=(),
    stop_token_ids=(),
    seed=1,
    grammar=None,
    top_logprobs=2,
    stream=False,
    model="",
)


@attrs.frozen(kw_only=True)
class Served:
    """What a server says of itself."""

    model: str
    context_length: int | None = None
    label: str | None = None
    """Its name of the weights in use."""
    model_path: str = ""


class ServerControl:
    """The calls to a server beside those that sample. `headers` go with all of them."""

    def __init__(self, client: ServerClient, server: ServerFormat, *, load_timeout_s: float) -> None:
        self._client, self._server = client, server
        self._load_timeout_s = load_timeout_s

    # While the engine starts, without an event loop.

    def describe(self, http: httpx2.Client, model: str | None) -> Served:
        """Ask for the model's name and limits."""
        cards = self._call(http, "GET", "/v1/models").get("data") or []
        names = [card.get("id") for card in cards]
        if not cards or (model is not None and model not in names):
            raise EngineError(f"{self._client.url}: serves {', '.join(map(str, names)) or 'no model'}, not {model!r}")
        card = cards[0 if model is None else names.index(model)]
        served = Served(model=card["id"], context_length=card.get("max_model_len"), model_path=card.get("root") or "")
        if self._server.name != "SGLang":
            return served
        info = self._call(http, "GET", "/model_info")
        label = info.get("weight_version")
        return attrs.evolve(
            served, label=None if label is None else str(label), model_path=str(info.get("model_path") or "")
        )

    def takes_temperature_into_account(self, http: httpx2.Client, model: str) -> bool:
        """Find out which logprobs a vLLM server returns: its default leaves the temperature out."""
        seen: list[Top] = []
        for temperature in (1.0, 2.0):
            ask = attrs.evolve(_PROBE, model=model, temperature=temperature)
            reply = self._call(http, "POST", self._server.path, self._server.body(ask))
            seen += self._server.part(ask, reply, 0).top_logprobs
        (first, second), (third, fourth) = ([logprob for _, logprob in top] for top in seen)
        # Of two tokens, the temperature halves how far apart they are.
        return abs((third - fourth) - (first - second)) > abs((third - fourth) - (first - second) / 2)

    def load_at_start(self, http: httpx2.Client, directory: Path, label: str) -> None:
        """Have an idle server load weights, and go on where a run that ended early has left it paused."""
        self._call(http, "POST", "/pause_generation", {"mode": "abort"})
        self._call(http, "POST", "/update_weights_from_disk", _weights(directory, label))
        self._call(http, "POST", "/continue_generation", {})

    def _call(self, http: httpx2.Client, method: str, path: str, body: Any = None) -> Any:
        import httpx2

        where = f"{self._client.url}{path}"
        try:
            reply = http.request(method, where, content=None if body is None else orjson.dumps(body))
        except httpx2.HTTPError as error:
            raise EngineError(f"{where}: no answer: {error or type(error).__name__}. Does the server run?") from error
        if reply.status_code != _OK:
            raise EngineError(f"{where}: status {reply.status_code}: {error_text(reply.content)}")
        return read_json(where, reply.content)

    # While it runs.

    async def pause(self) -> None:
        """Return when the server has aborted what it sampled, with what it has, and starts nothing."""
        await self._post("/pause_generation", {"mode": "abort"})

    async def resume(self) -> None:
        """Let it sample again."""
        await self._post("/continue_generation", {})

    async def load(self, directory: Path, label: str) -> None:
        """Have it read weights from a directory that it sees under the same path."""
        await self._post("/update_weights_from_disk", _weights(directory, label), silence_s=self._load_timeout_s)

    async def abort(self, ask_id: str) -> None:
        """End one call; the server ignores ids that it does not know."""
        await self._post("/abort_request", {"rid": ask_id})

    async def _post(self, path: str, body: Any, silence_s: float | None = None) -> None:
        try:
            with await self._client.request("POST", path, orjson.dumps(body), silence_s=silence_s) as reply:
                data = await reply.read()
        except ExchangeError as error:
            raise EngineError(f"{path}: {error}") from error
        if reply.status != _OK:
            raise EngineError(f"{self._client.url}{path}: status {reply.status}: {error_text(data)}")


def _weights(directory: Path, label: str) -> dict[str, Any]:
    return {"model_path": str(directory), "weight_version": label, "flush_cache": True}
