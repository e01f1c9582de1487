"""Values that cross the boundaries between agentrl's parts: tasks, records, interactions, groups.

Plain frozen attrs classes that any module may import: this one needs only attrs and the standard library. Shapes: T
counts tokens. Token ids are tuples of int, logprobs natural logarithms as float.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

Message: TypeAlias = dict[str, Any]
"""One chat message in OpenAI's shape: `role`, `content`, and `tool_calls` or `tool_call_id` where they apply."""

Versions: TypeAlias = tuple[tuple[int, int], ...]
"""Run-length policy versions of output tokens: `((version, number of tokens), …)`, versions never falling."""

KeptTokens: TypeAlias = tuple[bytes, ...]
"""Sampling masks of output tokens: the ids that top-k, top-p and constraints left to sample from, rising, 4 bytes each
(little endian), as `agentrl_core.api.kept_tokens` reads and writes them. An empty entry, or no entries: all tokens were
left. [T]"""


@attrs.frozen(kw_only=True)
class Task:
    """One row of the data set."""

    id: str
    """Unique within its data set."""
    data: Mapping[str, Any]
    """The whole row as the agent receives it; always has `id`, and `messages` (made from `query` where absent)."""
    answer: str | None = None
    """Reference answer for scorers; None where the row has none."""
    scorer: str | None = None
    """Registry name of the scorer; None means `data.default_scorer`."""
    answer_schema: str = ""
    """Place of the answer in the last reply: a tag name, or `boxed`. If empty, the answer is the text in `<answer>`
    tags, or else the whole reply."""


@attrs.frozen(kw_only=True)
class Grammar:
    """Constraint on the text of an output; an engine that cannot enforce it refuses the request."""

    kind: Literal["json_object", "json_schema", "regex", "lark"]
    value: str = ""
    """JSON text of the schema, the regular expression, or the Lark grammar; empty for `json_object`."""


@attrs.frozen(kw_only=True)
class Sampling:
    """Effective sampling parameters of one LLM call."""

    temperature: float = 1.0
    top_p: float = 1.0
    """Smallest probability mass to sample from: the likeliest tokens that reach it, of those that top-k leaves."""
    top_k: int = 0
    """Number of likeliest tokens to sample from; 0 keeps all. Temperature comes first, then top-k, then top-p."""
    max_tokens: int | None = None
    """None: up to the engine's context limit."""
    stop: tuple[str, ...] = ()
    """Stop strings; the sampled tokens that contain one are kept in the record, the text is cut before it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end generation (the end-of-turn token among them); the matched id is part of the output."""
    min_tokens: int = 0
    """No stop token is sampled before that many tokens. Logprobs then are as under a grammar. Cannot be combined with
    stop strings."""
    ignore_eos: bool = False
    """Continue past the end-of-sequence tokens that the model's files name; `stop_token_ids` still end a reply."""
    seed: int = 0
    """Seed of the counter-based random numbers of this one call; equal requests with equal seeds sample equally."""
    grammar: Grammar | None = None
    """Constraint: tokens that it rules out are never sampled. Logprobs stay those of the distribution without it,
    except in calls that return sampling masks."""

    @property
    def truncates(self) -> bool:
        """Whether top-p or top-k leave fewer than all tokens to sample from; at temperature 0 they change nothing."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


class FinishReason(enum.StrEnum):
    """Reason why the engine stopped."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


MOST_TOP_LOGPROBS = 20
"""Largest `top_logprobs`: as many as OpenAI's API allows."""


@attrs.frozen(kw_only=True)
class GenerateRequest:
    """Request to an engine: token ids in, token ids out. An engine never sees text or messages."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    session: str = ""
    """Hint for routing and caching: requests of one session share prefixes."""
    group: str = ""
    """Hint as well: sessions of one group share a prompt."""
    stream: bool = False
    """True: one chunk per decode step; otherwise all chunks come together at the end."""
    top_logprobs: int = 0
    """Number of the likeliest tokens to return for each position."""
    return_kept: bool = False
    """Whether to return the sampling masks of a call with top-p or top-k at a temperature above 0, as training needs
    them; an engine may return them for other calls, too."""
    images: tuple[str, ...] = ()
    """Data URLs of the prompt's images, in the order of their placeholders."""


@attrs.frozen(kw_only=True)
class Chunk:
    """Some newly sampled tokens, or the end of a generation."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of `ids`. Where `kept` has an entry: of the distribution that the token was sampled from, which is the
    temperature-scaled one renormalised over the kept tokens. Elsewhere: of the temperature-scaled distribution before
    top-p, top-k and grammar. [T]"""
    version: int
    """Policy version that sampled `ids`."""
    finish_reason: FinishReason | None = None
    """Set on the last chunk only."""
    stop_string: str | None = None
    """The stop string that matched, on the last chunk."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache served, on the last chunk."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Token ids and logprobs of the likeliest tokens at each position, likeliest first; empty unless requested.
    The logprobs are of the same distribution as the sampled token's. [T][K]"""
    kept: KeptTokens = ()
    """Sampling masks of `ids`. [T]"""


@attrs.frozen(kw_only=True)
class Interaction:
    """One LLM call inside a record: the sampled tokens and the exact prompt that they were sampled from.

    Interactions form a tree; each stores only what is new after its parent: `prompt_ids` holds the *new* prompt tokens
    after the parent's prompt and output, `messages` the new messages. `Episode.full_ids` restores the whole.
    """

    id: str
    """Response id that the agent's SDK shows (`chatcmpl-…`), unique in its record.

    It is derived from seed, slot and number of the call, because ids reach prompts through tool calls: the same call of
    a slot that is sampled again, or of another run of the seed, has the same id. Join by `record_id` and `id`.
    """
    record_id: str
    seq: int
    """0-based order of completion inside the record."""
    parent: str | None = None
    """Id of the interaction whose prompt and output this one continues token by token; None for a root."""
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Behaviour logprobs of `output_ids`, as in `Chunk`: where `kept` has an entry, renormalised over it. [T]"""
    kept: KeptTokens = ()
    """Sampling masks of `output_ids`, over which the learner renormalises its own logprobs. [T]"""
    versions: Versions
    messages: tuple[Message, ...]
    """Canonical new messages of the request, after those of the parent and its output."""
    output: Message
    """The assistant message that the agent received."""
    tools: tuple[Mapping[str, Any], ...] = ()
    sampling: Sampling = attrs.field(factory=Sampling)
    requested: Mapping[str, Any] = attrs.field(factory=dict)
    """Sampling fields as the agent requested them, where they differ from `sampling`, and notes of the gateway: `tools`
    that the template leaves out, `context_policy` (`agentrl_core.api.compaction.COMPACTION`)."""
    finish_reason: FinishReason = FinishReason.STOP
    model: str = "default"
    api: str = "chat"
    """API that the agent called: `chat`, `responses`, `messages` or `completions`; `context` for a call that the
    context policy made."""
    trainable: bool = True
    upstream: str = ""
    """Name of the upstream provider that answered in place of the policy; then there are no token ids."""
    cached_tokens: int = 0
    tool_errors: int = 0
    """Malformed tool calls in this output."""
    witness: str = ""
    """Digest of the engine's input and output (`agentrl_core.weights.witness`); empty if none was taken."""
    retry_key: str = ""
    """Digest of the request and of the key by which its client can ask for the same reply again; empty without a
    key."""
    started_at: float = 0.0
    """Unix seconds."""
    finished_at: float = 0.0
    digest: str = ""
    """Digest of all other fields (`agentrl_core.api.audit.call_digest`), taken before the call was stored; empty if
    none was taken."""

    @property
    def is_agents(self) -> bool:
        """Whether the agent made the call; False for a call of the context policy, which the agent knows nothing of."""
        return self.api != "context"

    @property
    def output_versions(self) -> Iterator[int]:
        """The policy version of each output token, in order."""
        return (version for version, count in self.versions for _ in range(count))


class ToolOutcome(enum.StrEnum):
    """End of a tool call."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    """The tool ran and reported a failure."""
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    """Not JSON, or not as the tool's schema demands; nothing was called."""
    BLOCKED = "blocked"
    """Middleware refused it, or the episode's budget of calls was used up; nothing was called."""
    INVALID_RESULT = "invalid_result"
    """The server's answer was no valid result, or larger than `tools.max_result_bytes`."""
    NOT_SENT = "not_sent"
    """The server could not be reached, in any of the tries; nothing was called."""
    DELIVERY_UNKNOWN = "delivery_unknown"
    """There was no answer in time, and the call may not be repeated: it may have run or not."""
    ENVIRONMENT_LOST = "environment_lost"
    """The state of the episode on the server is gone."""
    CANCELLED = "cancelled"
    """The episode ended first."""

    @property
    def is_failure(self) -> bool:
        """Whether the tool or its server failed, unlike a call that was refused before."""
        return self in _TOOL_FAILURES


_TOOL_FAILURES = frozenset(
    {
        ToolOutcome.TOOL_ERROR,
        ToolOutcome.INVALID_RESULT,
        ToolOutcome.NOT_SENT,
        ToolOutcome.DELIVERY_UNKNOWN,
        ToolOutcome.ENVIRONMENT_LOST,
    }
)


@attrs.frozen(kw_only=True)
class ToolCall:
    """One tool call of a record, through the run's tools (`workflow_context.tools`)."""

    id: str
    """Unique across runs."""
    record_id: str
    seq: int
    """0-based order of their start inside the record."""
    call_id: str = ""
    """The model's id of the call, as in the assistant message that asked for it; empty if it has none."""
    name: str
    """Name as the model wrote it."""
    arguments: Mapping[str, Any] | str
    """Arguments as the model wrote them; the text, if it was no JSON object."""
    server: str = ""
    """Name of the server in the config; empty for a call that reached none."""
    tool: str = ""
    """Name on the server."""
    sent: Mapping[str, Any] | None = None
    """Arguments as they were sent, where middleware changed them."""
    isolation: str = ""
    outcome: ToolOutcome
    error: str = ""
    """One line for a person about what went wrong, without secrets."""
    raw: tuple[Mapping[str, Any], ...] | None = None
    """Content parts as the server gave them, where they differ from `shown`."""
    shown: tuple[Mapping[str, Any], ...] = ()
    """Content parts that the model was shown."""
    attempts: int = 1
    """Number of times that the call was sent; 0 for one that was refused before."""
    middleware: tuple[str, ...] = ()
    """Names of the middleware that changed the request, the result, or both; in order."""
    started_at: float = 0.0
    """Unix seconds."""
    finished_at: float = 0.0
    digest: str = ""
    """Digest of all other fields, as of an `Interaction`."""


BY_USER = "by_user"
"""Reason of a record that a person cancelled (`agentrl runs cancel`)."""


class Outcome(enum.StrEnum):
    """State of a record; all but `RUNNING` are final."""

    RUNNING = "running"
    SCORED = "scored"
    REJECTED = "rejected"
    """The agent or a scorer gave nothing usable (`reason` says why)."""
    FAILED = "failed"
    """The agent raised."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    """The run stopped first, and the slot is sampled anew on resume; or another episode of the group failed (reason
    `sibling_failed`, with `rollout.siblings: cancel`); or the process that served its calls was lost (`server_lost`),
    and the slot is sampled anew at once; or a person cancelled it (`by_user`)."""


@attrs.frozen(kw_only=True)
class Record:
    """One episode: one run of the workflow on one task."""

    id: str
    run_id: str
    task_id: str
    group_id: str
    sample_index: int
    """Position in its group, 0-based."""
    attempt: int = 0
    """0 for the first try of this slot; continues to count if the task comes back in another group."""
    is_eval: bool = False
    task_set: str = "train"
    """Set that the task belongs to: `train`, `eval` or `eval.NAME` as in the config's section `data`; `sessions` for
    a task that an agent opened outside training."""
    outcome: Outcome = Outcome.RUNNING
    reason: str = ""
    """Short stable word for counting (`not_finite`, `TimeoutError`, …)."""
    detail: str = ""
    """One line for a person: place, expectation, fix."""
    reward: float | None = None
    """The record's scalar reward; the sum of `rewards` where the workflow returned a dict."""
    rewards: Mapping[str, float] = attrs.field(factory=dict)
    """Interaction id → reward as given, where the workflow returned a dict."""
    score: float | None = None
    """Value of the task's scorer, stored beside a workflow's own reward."""
    score_parts: Mapping[str, float] = attrs.field(factory=dict)
    score_details: Mapping[str, Any] = attrs.field(factory=dict)
    """Details that the scorer gave with its value, or with having none; only `Store.episode` restores them."""
    marks: tuple[str, ...] = ()
    """Short stable words about the episode, each once, whatever its outcome: `delivery_unknown`, `tool_error`, … for
    tool calls that ended so, and words that the workflow adds by `workflow_context.mark`."""
    started_at: float = 0.0
    finished_at: float = 0.0


@attrs.frozen(kw_only=True)
class Episode:
    """A finished record with its interactions in order of completion."""

    record: Record
    interactions: tuple[Interaction, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of the run's tools, by `seq`; only `Store.episode` and `RunReader.episode` restore them."""

    def lineage(self, interaction: Interaction) -> tuple[Interaction, ...]:
        """Return the interactions from the root to `interaction`, inclusive."""
        by_id = {item.id: item for item in self.interactions}
        chain = [interaction]
        while (parent := chain[-1].parent) is not None:
            chain.append(by_id[parent])
        return tuple(reversed(chain))

    def full_ids(self, interaction: Interaction) -> tuple[int, ...]:
        """Return prompt and output ids of the whole lineage: what the engine saw and sampled. [T]."""
        return tuple(
            token for item in self.lineage(interaction) for ids in (item.prompt_ids, item.output_ids) for token in ids
        )


@attrs.frozen(kw_only=True)
class Group:
    """The records of one task that share a baseline; complete when every record has ended, or its place is given up."""

    id: str
    run_id: str
    task_id: str
    index: int
    """Position of the task in the run's order, 0-based; a task that comes back keeps it."""
    episodes: tuple[Episode, ...]
    """Scored records only, by sample index."""
    version: int = 0
    """Policy version when the group was submitted."""


@attrs.frozen(kw_only=True)
class Evaluation:
    """Summary of an evaluation's rewards."""

    mean: float
    """Mean reward; NaN without any. A record without a reward is left out: it does not count as 0."""
    error: float
    """Standard error of the mean, from the sample standard deviation; NaN with fewer than two rewards."""
    scored: int
    """Records with a reward."""
    failed: int
    """Records without a reward."""

    @classmethod
    def of(cls, rewards: Sequence[float], *, failed: int) -> Evaluation:
        """Summarise rewards."""
        count = len(rewards)
        mean = math.fsum(rewards) / count if rewards else math.nan
        squares = math.fsum((reward - mean) ** 2 for reward in rewards)
        error = math.sqrt(squares / (count - 1) / count) if count > 1 else math.nan
        return cls(mean=mean, error=error, scored=count, failed=failed)


def run_lengths(versions: tuple[int, ...] | list[int]) -> Versions:
    """Compress per-token versions into runs."""
    # Nearly all outputs are of one version.
    if versions and versions.count(versions[0]) == len(versions):
        return ((versions[0], len(versions)),)
    runs: list[tuple[int, int]] = []
    for version in versions:
        if runs and runs[-1][0] == version:
            runs[-1] = (version, runs[-1][1] + 1)
        else:
            runs.append((version, 1))
    return tuple(runs)
