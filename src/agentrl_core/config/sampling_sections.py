"""Sections of the config that say how episodes are sampled: sampling, gateway, rollout and tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs
from attrs import field, validators

from agentrl_core.config.component import Component
from agentrl_core.config.validators import (
    Must,
    at_least_one,
    filled,
    fraction,
    no_episode_variable,
    no_policy,
    not_negative,
    port_number,
    positive,
    probability_mass,
    provider_url,
    proxy_option,
    public_url,
)


@attrs.frozen(kw_only=True)
class SamplingConfig:
    """Sampling parameters of the policy."""

    temperature: float = field(default=1.0, validator=not_negative)
    """Temperature while training, above 0; greedy sampling is only for evaluations (`eval.temperature`)."""
    top_p: float = field(default=1.0, validator=probability_mass)
    """Nucleus sampling while training: samples from the likeliest tokens that together have this probability, after
    `top_k`. The engine records which tokens these were (sampling masks), and the learner renormalises over the same."""
    top_k: int = field(default=0, validator=not_negative)
    """Number of likeliest tokens that are sampled from while training; 0: all. Bounds the size of sampling masks."""
    max_tokens: int | None = field(default=None, validator=validators.optional(positive))
    """Token limit of one reply, if the agent sets none. None: half of the model's context, at most 1,024."""
    min_tokens: int = field(default=0, validator=not_negative)
    """Least number of tokens of a reply: tokens that would end it earlier are not sampled. Not allowed with `stop`."""
    stop: tuple[str, ...] = field(default=(), validator=Must("texts that are not empty", all))
    """Texts that end a reply, if the agent sets none."""
    stop_token_ids: tuple[int, ...] = field(
        default=(), validator=Must("token ids of at least 0", lambda value: all(item >= 0 for item in value))
    )
    """Token ids that end a reply, in addition to the model's own."""
    ignore_eos: bool = False
    """Ignores the model's own end tokens, so that most replies have `max_tokens` tokens; for speed measurements."""


@attrs.frozen(kw_only=True)
class UpstreamConfig:
    """Model of another provider that agents may call through the gateway, over OpenAI's chat completions."""

    url: str = field(validator=provider_url)
    """Address of the API without `/chat/completions`, such as `https://api.openai.com/v1`."""
    model: str | None = None
    """Provider's name of the model; None: the name that agents use."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; never the key itself."""
    timeout_s: float = field(default=120.0, validator=positive)
    """Longest time in seconds without data from the provider."""
    max_retries: int = field(default=2, validator=not_negative)
    """Number of retries of a call after a connection error, a rate limit (429) or a server error (5xx)."""
    proxy: str | None = field(default=None, validator=validators.optional(proxy_option))
    """Address of an HTTP proxy, or `direct` for none. None: as HTTPS_PROXY, HTTP_PROXY and NO_PROXY say."""


@attrs.frozen(kw_only=True)
class GatewayConfig:
    """Local HTTP server that records the LLM calls of agents."""

    host: str = "127.0.0.1"
    """Address to listen on. An address that other machines can reach requires an admin key in `admin_key_env`."""
    port: int = field(default=0, validator=port_number)
    """Port to listen on; 0: any free port."""
    public_url: str | None = field(default=None, validator=validators.optional(public_url))
    """Address under which online agents reach the gateway, used in the `base_url` of their sessions, such as
    `https://rl.example.com` behind a TLS proxy. None: the host of the agent's own request, with https if the proxy's
    headers say so."""
    history: Literal["exact", "template"] = "exact"
    """Prompt of later turns: `exact` continues from the token ids that were sampled; `template` re-renders the history,
    and if the past changed, a new training sequence starts."""
    temperature: Literal["force", "refuse", "allow"] = "force"
    """Response, while training, to an agent that asks for another temperature, top_p or top_k than the policy's:
    `force` uses the policy's and counts the call, `refuse` is an error, `allow` uses the agent's; its temperature must
    be above 0."""
    tool_parser: str = "auto"
    """Parser of tool calls in replies: a registry name, `module:attr` or `file.py:attr`; `auto` recognises the format
    from the model's chat template."""
    unseen_tools: Literal["refuse", "allow"] = "refuse"
    """Response to an agent that offers tools to a model whose chat template has no place for them: `refuse` is an
    error, because the policy would never see them; `allow` drops them, counts the call and notes it in the trace."""
    hosted_tools: Literal["refuse", "drop"] = "refuse"
    """Response to an agent that declares tools which a provider would run, such as web search, for the policy: `refuse`
    is an error, because nobody would run them; `drop` leaves them out and notes it in the trace."""
    reasoning_parser: Literal["auto", "none", "think", "mistral", "minicpm"] = "auto"
    """Format of the model's thoughts, which are removed from a reply's content; `none` leaves them in the content."""
    upstreams: Mapping[str, UpstreamConfig] = field(factory=dict, validator=no_policy)
    """Models of other providers, by the name that agents use; calls to them are never trained."""
    admin_key_env: str = field(default="AGENTRL_ADMIN_KEY", validator=filled)
    """Name of the environment variable with the admin key that opens sessions; if unset, the run creates a key."""
    session_ttl_s: float = field(default=0.0, validator=not_negative)
    """Longest time in seconds without a call before a session of an online agent ends; 0: no limit."""
    url_tokens: bool = True
    """Lets callers on this machine in by an episode's `base_url` alone. `false` requires the `api_key` of everyone; set
    it if a proxy on this machine forwards outside requests to the gateway without a header that shows it."""
    pause_timeout_s: float = field(default=300.0, validator=positive)
    """Longest time in seconds that a call waits while the gateway is paused, as it is while weights are loaded."""
    max_session_replies: int = field(default=512, validator=positive)
    """Largest number of replies of one session generated at once; a further call gets status 429 and may be retried."""
    max_session_calls_per_minute: int | None = field(default=None, validator=validators.optional(positive))
    """Largest number of LLM calls of one session per minute; None: no limit."""
    max_replies_per_call: int = field(default=128, validator=positive)
    """Largest number of replies to one LLM call: its prompts times `n`."""


@attrs.frozen(kw_only=True)
class AgentConfig:
    """Options of the agents' execution and of their rewards."""

    mode: Literal["inline", "subproc", "online"] = "inline"
    """Execution of agents: `inline` in the run's own process; `subproc` in separate processes, where they may block,
    crash or be killed; `online` outside of the run, where agents open sessions over HTTP by themselves."""
    turn_discount: float = field(default=1.0, validator=fraction)
    """Discount of the reward for earlier turns: the factor applies once per later turn."""
    export_style: Literal["individual", "concat"] = "individual"
    """Unit of one training sequence: `individual`, one LLM call with the dialogue before it; `concat`, a whole dialogue
    with all of its calls. Both train each sampled token once, with the advantage of its own call, and compute shared
    prefixes once. They differ only with `loss.unit: sequence`, which averages over sequences."""
    subproc_max_workers: int = field(default=4, validator=positive)
    """With `subproc`: number of processes; each runs one episode at a time."""
    python: str | None = field(default=None, validator=validators.optional(filled))
    """With `subproc`: another Python interpreter, 3.8 or newer, that has the agent's packages; agentrl need not be
    installed there. A path, relative to the config file, or a command."""
    env: Mapping[str, str] = field(factory=dict, validator=no_episode_variable)
    """With `subproc`: additional environment variables of the agents. They are stored with the run, so put secrets into
    the run's own environment, which agents inherit."""
    subproc_max_memory_mb: int | None = field(default=None, validator=validators.optional(positive))
    """With `subproc`: memory limit of an agent with its child processes; beyond it they are killed and the record fails
    (Linux)."""
    subproc_hide_run: bool = True
    """With `subproc`: keeps agents from reading the memory and environment of the process that starts them, which has
    the run's admin key (Linux). Then no debugger and no profiler such as py-spy can attach to it either, it writes no
    core dump, and transfers between processes that need such access, as CUDA IPC may, fail. `false` allows all of that;
    set it only for agents, with their tools, that you trust."""
    reward_timeout_s: float = field(default=3600.0, validator=positive)
    """Longest time in seconds that an ended session of an online agent waits for its reward."""
    reward_grace_s: float = field(default=5.0, validator=positive)
    """Time in seconds that an ended session waits for further rewards after its first. The wait ends early when all
    calls have rewards, after a reward for the episode (without `interaction_id`), or after one with `final: true`."""
    lease_timeout_s: float = field(default=600.0, validator=positive)
    """Without data.train: longest time in seconds that a group waits for its next session; then it ends as it is."""


@attrs.frozen(kw_only=True)
class RolloutConfig:
    """Sampling of episodes: number, concurrency, retries and staleness."""

    group_size: int = field(default=8, validator=positive)
    """Number of episodes per task whose rewards are compared with each other."""
    tasks_per_step: int = field(default=16, validator=positive)
    """Number of groups, and so of tasks, per optimizer step."""
    max_concurrent_rollouts: int = field(default=32, validator=positive)
    """Largest number of episodes that run at once."""
    max_head_offpolicyness: int = field(default=0, validator=not_negative)
    """Largest number of policy versions that a group may lag behind; 0: synchronous training. A group that lags
    further when a step takes it is not trained, and sampled anew."""
    pipeline_depth: int | None = field(default=None, validator=validators.optional(not_negative))
    """With max_head_offpolicyness above 0: largest number of groups in flight (being sampled, waiting or being trained)
    beyond the tasks_per_step of one step. A smaller number gives fresher samples, because sampling waits instead of
    running ahead: with tasks_per_step one batch is sampled while another one is trained, with 0 sampling waits for
    training. None: only max_head_offpolicyness limits it."""
    order: Component = Component("fifo")
    """Order in which a step takes the groups that are ready, with max_head_offpolicyness above 0: `fifo`, which waits
    for an older group rather than let it get too old; `freshest`, newest version first; `priority`, highest number in
    the tasks' field `priority` first. With the latter two, a group that gets too old is not trained, and others are
    sampled instead."""
    timeout_s: float = field(default=300.0, validator=positive)
    """Time limit of one episode in seconds."""
    retries: int = field(default=1, validator=not_negative)
    """Number of times that an episode which ended without a reward is sampled again, alone."""
    min_group_size: int = field(default=2, validator=positive)
    """Least number of scored episodes of a usable group."""
    siblings: Literal["keep", "cancel"] = "keep"
    """Treatment of a group when one of its episodes ends without a reward: `keep` goes on with the others; `cancel`
    ends them and their generations at once, without retries, and the group is not usable (AReaL's fail-fast)."""
    requeue: int = field(default=1, validator=not_negative)
    """Number of times that a task is sampled again, with the next policy version, after its group was unusable."""
    dynamic_sampling: bool = False
    """Samples other groups in place of those that `filters` drop (DAPO's dynamic sampling)."""
    max_oversampling: float = field(default=3.0, validator=at_least_one)
    """With dynamic_sampling: largest number of groups sampled for one step, as a multiple of tasks_per_step. The step
    then trains on those that the filters kept."""
    max_failure_rate: float = field(default=0.5, validator=fraction)
    """Share of the last `failure_window` episodes that may end without a reward; the run stops above it, or if none of
    them got a reward. With 1.0 it goes on while anything works, but starts episodes more slowly the more fail."""
    failure_window: int = field(default=64, validator=positive)
    """Number of last episodes that `max_failure_rate` counts."""
    lease_s: float = field(default=60.0, validator=positive)
    """Time in seconds without a heartbeat after which the other processes of a run take over the work of one."""
    max_takeovers: int = field(default=3, validator=not_negative)
    """Number of times that a group is taken over after its process was lost; then it is given up, because its task may
    be what kills the processes."""
    agent: AgentConfig = field(factory=AgentConfig)


@attrs.frozen(kw_only=True)
class ToolsConfig:
    """Tools that agents get as `workflow_context.tools`: servers, middleware and limits."""

    servers: tuple[Component, ...] = ()
    """Sources of tools: `functions` (plain Python functions), or a package's, such as `mcp`. Each may have, beside its
    own options, a `name`, a `prefix` before the names of its tools, and a `timeout_s` of its own."""
    middleware: tuple[Component, ...] = ()
    """Wrappers of every tool call, the first one outermost."""
    timeout_s: float = field(default=60.0, validator=positive)
    """Longest time in seconds of one tool call with its retries."""
    max_calls: int | None = field(default=None, validator=validators.optional(positive))
    """Largest number of tool calls of one episode; the model is told when they are used up. None: no limit."""
    max_concurrent_calls: int = field(default=256, validator=positive)
    """Largest number of tool calls of all episodes at once; others wait."""
    retries: int = field(default=2, validator=not_negative)
    """Number of times that a call which did not reach its server, or may be repeated without harm, is sent again."""
    max_result_bytes: int = field(default=1_000_000, validator=positive)
    """Largest result of a call in bytes, images included; the model gets an error instead of a larger one."""
    max_failure_rate: float = field(default=0.5, validator=fraction)
    """Share of a server's last `failure_window` calls that may fail for reasons of the server; above it the run stops
    and names the server."""
    failure_window: int = field(default=64, validator=positive)
    """Number of a server's last calls that `max_failure_rate` counts."""
