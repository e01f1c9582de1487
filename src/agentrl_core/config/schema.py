"""Options of `agentrl run`: one attrs class per section of the config, each option with default, limits and text.

`cookbook/config.md` is generated from these docstrings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_type_hints

import attrs
from attrs import field, validators

from agentrl_core.config.nodes import without_password
from agentrl_core.http import proxies


@attrs.frozen
class Must:
    """Validator whose message states the expected value in the terms of a config file."""

    expected: str
    holds: Callable[[Any], bool]

    def __call__(self, _instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Raise `ValueError` if `value` is not as expected."""
        if not self.holds(value):
            found = without_password(repr(value))
            raise ValueError(f"{attribute.name}: expected {self.expected}, found {found}")


positive = Must("a number above 0", lambda value: value > 0)
not_negative = Must("a number of at least 0", lambda value: value >= 0)
at_least_one = Must("a number of at least 1", lambda value: value >= 1)
fraction = Must("a number from 0 to 1", lambda value: 0 <= value <= 1)
filled = Must("a text that is not empty", bool)
port_number = Must("a port from 0 to 65535", lambda value: 0 <= value <= 65535)  # noqa: PLR2004  (16 bits)
seed_number = Must("a whole number from 0 to 2**63 - 1", lambda value: 0 <= value < 2**63)
run_name = Must(
    "letters, digits, '.', '_' and '-', the first a letter or a digit",
    lambda value: not value or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value) is not None,
)


provider_url = Must(
    "http(s)://host[:port][/path], the part before /chat/completions, without user, password or query",
    lambda value: re.fullmatch(r"https?://[^/?#@\s]+(/(?![^?#\s]*/?chat/completions/?$)[^?#\s]*)?", value) is not None,
)
_public_url = Must(
    "http(s)://host[:port][/path], without user, password, query or /v1",
    lambda value: re.fullmatch(r"https?://[^/?#@\s]+(/(?![^?#\s]*v1/?$)[^?#\s]*)?", value) is not None,
)
device_name = Must("auto, cpu, cuda or cuda:N", lambda value: re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is not None)
_limit = Must("a number above 0, or null for no limit", lambda value: value is None or value > 0)
_proxy = Must(proxies.FORMS, proxies.is_option)
_no_policy = Must("no model named default, which is the policy's name", lambda value: "default" not in value)
_no_episode_variable = Must(
    "no variable that is set per episode (OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY)",
    lambda value: (
        not {f"{api}_{item}" for api in ("OPENAI", "ANTHROPIC") for item in ("BASE_URL", "API_KEY")} & set(value)
    ),
)


def _without(*names: str) -> Must:
    """Return a validator that refuses options with the names of the section's own fields."""
    return Must(f"no option named {' or '.join(names)}", lambda options: not set(names) & set(options))


AUTO = "auto"
"""Placeholder for a component that another part of the config chooses."""


@attrs.frozen
class Component:
    """Pluggable part of a run, `{use: NAME, …options}`; a bare string means `{use: …}`."""

    use: str = field(validator=filled)
    """Registry name, `distribution/name`, `module:attr`, `file.py:attr` or `pkg.mod.Attr`."""
    options: Mapping[str, Any] = field(factory=dict, validator=_without("use"))
    """Arguments of the component's constructor."""


@attrs.frozen(kw_only=True)
class ModelConfig:
    """Source of the policy: `path` of a Hugging Face model directory, or `use` of a registered builder."""

    path: str | None = None
    """Local model directory with weights, tokenizer.json and a chat template."""
    use: str | None = None
    """Registry name of a model builder: `tiny` makes a new model, `smollm2-135m` writes a pretrained one."""
    options: Mapping[str, Any] = field(factory=dict, validator=_without("path", "use", "dtype"))
    """Options of the builder, written next to `use`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type that learner and embedded engine compute in. With `bfloat16` the learner also keeps fp32 master weights,
    which the optimizer changes and checkpoints restore; gradients and optimizer state are fp32 in both."""


@attrs.frozen(kw_only=True)
class WarmStartConfig:
    """Supervised fine-tuning before reinforcement learning, in the same run."""

    data: str = field(validator=filled)
    """JSONL file of demonstrations: `{"messages": […], "tools": […]}`; assistant messages are trained."""
    steps: int = field(default=100, validator=positive)
    """Number of optimizer updates."""
    batch_size: int = field(default=24, validator=positive)
    """Number of demonstrations per update."""
    lr: float | None = field(default=None, validator=validators.optional(positive))
    """Learning rate. None: 2e-5 for a pretrained model, 3e-3 for one that its builder makes from nothing."""
    warmup_steps: int = field(default=20, validator=not_negative)
    """Number of first updates over which the learning rate rises from 0."""


@attrs.frozen(kw_only=True)
class DataConfig:
    """Tasks to train and evaluate on."""

    train: str | Component | None = field(default=None, validator=validators.optional(filled))
    """JSONL file of tasks, relative to the config file, or the name of a registered data set, with its options where it
    has some: `{use: NAME, …}`. Optional with `rollout.agent.mode: online`, where agents may bring their own tasks."""
    eval: Component | Mapping[str, str | Component] | str | None = None
    """JSONL file or data set of held-out tasks, or several by name: `{heldout: a.jsonl, seen: {use: NAME, …}}`."""
    default_scorer: str | None = field(default=None, validator=validators.optional(filled))
    """Scorer of tasks that name none, used if the workflow returns no reward. None: `agentcpm`, if agentrl-judge is
    installed. A scorer that is named here must be installed."""
    allow_code: bool = False
    """Allows a task's `scorer` to be code, `file.py:name` or `module:name`, which the run then executes. Without it, a
    task may name only registered scorers and those defined under `scorers`."""
    shuffle: bool = True
    """Goes through the tasks in a new random order on each pass."""

    @property
    def sources(self) -> Mapping[str, Component]:
        """The sources of all task sets, by their dotted keys `data.train`, `data.eval` and `data.eval.NAME`.

        A source's `use` is a file or the name of a data set.
        """
        sets = {"data.train": self.train}
        if isinstance(self.eval, Mapping):
            sets |= {f"data.eval.{name}": source for name, source in self.eval.items()}
        else:
            sets["data.eval"] = self.eval
        named = {key: Component(source) if isinstance(source, str) else source for key, source in sets.items()}
        return {key: source for key, source in named.items() if source is not None}


@attrs.frozen(kw_only=True)
class SamplingConfig:
    """Sampling parameters of the policy."""

    temperature: float = field(default=1.0, validator=not_negative)
    """Temperature while training, above 0; greedy sampling is only for evaluations (`eval.temperature`)."""
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
    proxy: str | None = field(default=None, validator=validators.optional(_proxy))
    """Address of an HTTP proxy, or `direct` for none. None: as HTTPS_PROXY, HTTP_PROXY and NO_PROXY say."""


@attrs.frozen(kw_only=True)
class GatewayConfig:
    """Local HTTP server that records the LLM calls of agents."""

    host: str = "127.0.0.1"
    """Address to listen on. An address that other machines can reach requires an admin key in `admin_key_env`."""
    port: int = field(default=0, validator=port_number)
    """Port to listen on; 0: any free port."""
    public_url: str | None = field(default=None, validator=validators.optional(_public_url))
    """Address under which online agents reach the gateway, used in the `base_url` of their sessions, such as
    `https://rl.example.com` behind a TLS proxy. None: the host of the agent's own request, with https if the proxy's
    headers say so."""
    history: Literal["exact", "template"] = "exact"
    """Prompt of later turns: `exact` continues from the token ids that were sampled; `template` re-renders the history,
    and if the past changed, a new training sequence starts."""
    temperature: Literal["force", "refuse", "allow"] = "force"
    """Response, while training, to an agent that asks for another temperature than the policy's: `force` uses the
    policy's and counts the call, `refuse` is an error, `allow` uses the agent's if it is above 0."""
    tool_parser: str = "auto"
    """Parser of tool calls in replies: a registry name, `module:attr` or `file.py:attr`; `auto` recognises the format
    from the model's chat template."""
    unseen_tools: Literal["refuse", "allow"] = "refuse"
    """Response to an agent that offers tools to a model whose chat template has no place for them: `refuse` is an
    error, because the policy would never see them; `allow` drops them, counts the call and notes it in the trace."""
    reasoning_parser: Literal["auto", "none", "think", "mistral", "minicpm"] = "auto"
    """Format of the model's thoughts, which are removed from a reply's content; `none` leaves them in the content."""
    upstreams: Mapping[str, UpstreamConfig] = field(factory=dict, validator=_no_policy)
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
    env: Mapping[str, str] = field(factory=dict, validator=_no_episode_variable)
    """With `subproc`: additional environment variables of the agents. They are stored with the run, so put secrets into
    the run's own environment, which agents inherit."""
    subproc_max_memory_mb: int | None = field(default=None, validator=validators.optional(positive))
    """With `subproc`: memory limit of an agent with its child processes; beyond it they are killed and the record fails
    (Linux)."""
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


@attrs.frozen(kw_only=True)
class TrainerConfig:
    """Optimization and checkpoints."""

    steps: int = field(default=100, validator=positive)
    """Number of optimizer steps of the run."""
    lr: float | None = field(default=None, validator=validators.optional(not_negative))
    """Learning rate of AdamW. None: 1e-6 for a pretrained model (`model.path`, and builders such as `smollm2-135m`),
    4e-4 for one built from nothing (`tiny`); `agentrl config show` prints which."""
    warmup_steps: int = field(default=5, validator=not_negative)
    """Number of first steps over which the learning rate rises from 0."""
    betas: tuple[float, float] = field(
        default=(0.9, 0.95),
        validator=Must("two numbers from 0 to below 1", lambda value: all(0 <= beta < 1 for beta in value)),
    )
    """Decay rates of AdamW's two moments."""
    weight_decay: float = field(default=0.0, validator=not_negative)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = field(default=1.0, validator=positive)
    """Norm to which longer gradients are clipped."""
    updates: int = field(default=1, validator=positive)
    """Number of optimizer updates per step, each on its share of the step's groups."""
    max_tokens_per_microbatch: int = field(default=8192, validator=positive)
    """Largest number of tokens per forward pass; shared prefixes count once. A longer record gets a pass of its own."""
    attention: Literal["auto", "rect", "flex", "dfs", "dense", "rows"] = "auto"
    """Attention over records that share a prefix, which is then computed once; `auto` uses the fastest that fits the
    model. `rect`: one flash-attention call per node of the prefix trie, on CPU. `flex`: one kernel, on CUDA. `dfs`:
    node by node with the model's KV cache, with a second forward pass for the backward pass; works with any model that
    can continue from its cache, and needs the least memory. `dense`: one call with a T x T mask. `rows`: each row
    alone, nothing is shared."""
    gradient_checkpointing: bool = False
    """Recomputes each layer's activations in the backward pass instead of keeping them: less memory, a third more
    time."""
    save_steps: int = field(default=20, validator=positive)
    """Number of steps between checkpoints."""
    save_minutes: float = field(default=10.0, validator=positive)
    """Time in minutes after which the next step writes a checkpoint in any case."""
    keep_last: int = field(default=3, validator=positive)
    """Number of checkpoints to keep; older ones are deleted."""
    max_logprob_gap: float | None = field(default=None, validator=validators.optional(positive))
    """Largest |learner - engine| difference of a token's log-probability, among tokens of lag 0, which both compute
    with the same weights; above it the run stops. None: 0.001 where both compute in float32. Where one of them computes
    in bfloat16, single tokens differ by up to 1; there the mean may not exceed 0.15, nor the 99th percentile 0.8."""
    stop_at_reward: float | None = None
    """Mean training reward over the last 3 steps at which the run ends early; None: never."""
    max_steps_without_signal: int = field(default=10, validator=positive)
    """Number of steps in a row with nothing to learn from (equal rewards within every group) that stops the run."""
    non_finite: Literal["stop", "skip"] = "stop"
    """Treatment of an advantage, a log-probability, a loss or a gradient that is NaN or infinite; it never reaches the
    weights. `stop` ends the run and names the records. `skip` makes the update without these records' loss terms, or
    skips it if no record is at fault or none is left."""
    max_steps_not_finite: int = field(default=5, validator=positive)
    """With `non_finite: skip`: number of steps in a row with something left out that stops the run."""
    routing_replay: bool = False
    """For mixture-of-experts models with several updates per step: every update routes each token to the experts that
    the weights before the step chose. The gate's weights are still computed and trained as usual."""
    device: str = field(default="auto", validator=device_name)
    """Device that the learner trains on: `cpu`, `cuda`, `cuda:N`; `auto` uses a GPU if there is one."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """Part of the learner that is in pinned main memory while the run samples, to leave a GPU that both use to the
    engine: `optimizer` moves the optimizer's state and bf16's master weights, `all` also the weights of policy and
    reference policy. Each step moves it there and back. Without effect on a CPU."""
    threads: int = field(default=1, validator=positive)
    """Number of the learner's torch threads, at most the cores of this machine; the engine's threads are subtracted if
    both are busy at once (max_head_offpolicyness above 0). On a machine that others use too, 1 is as fast."""


@attrs.frozen(kw_only=True)
class EvalConfig:
    """Evaluation on `data.eval`."""

    every: int = field(default=10, validator=not_negative)
    """Number of steps between evaluations; 0: only before and after training."""
    tasks: int = field(default=256, validator=positive)
    """Number of tasks per set in the evaluations before and after training."""
    tasks_during: int = field(default=64, validator=positive)
    """Number of tasks per set in the evaluations during training."""
    temperature: float = field(default=1.0, validator=not_negative)
    """Temperature in evaluations, if the agent asks for none."""


@attrs.frozen(kw_only=True)
class WeightsConfig:
    """Way of the policy's weights to servers; the embedded engine of `agentrl run` copies them within its process."""

    publish: Component = Component("disk")
    """`disk`: a whole model directory for each version. `delta`: only what changed since the version before, with a
    whole one every `full_every` versions (20), computed on `threads` threads (1); for `agentrl train` and `serve`.
    `nccl` and `ipc`: from GPU to GPU, between machines or on one, for `agentrl run` with model servers."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of published weights. None: `model.dtype`. With `bfloat16` a float32 model needs half the bytes, and a delta
    a tenth: set it where the servers compute in bfloat16."""
    local: str | None = field(default=None, validator=validators.optional(filled))
    """Folder on this machine's disk, or in its memory (`/dev/shm`), for the whole copies that deltas are computed from
    and applied to, two at a time. None: the system's temporary folder."""
    place: str | None = field(default=None, validator=validators.optional(filled))
    """Folder that trainer and servers share, such as one of a network file system; each run has its own folder in it.
    None: `weights` in the run's folder."""


@attrs.frozen(kw_only=True)
class RolesConfig:
    """Cooperation of `agentrl train`, `serve` and `sample` as separate processes."""

    wait_s: float | None = field(default=600.0, validator=_limit)
    """Longest time in seconds that one of them waits for another; then it ends with an error that names what it waited
    for. None: no limit."""


@attrs.frozen(kw_only=True)
class PluginsConfig:
    """Plugin packages and modules to load."""

    block: tuple[str, ...] = ()
    """Names of installed plugin packages that are not loaded."""
    modules: tuple[str, ...] = ()
    """Modules or files to import first, because they register components, for example with `register_scorer`."""
    on_error: Literal["stop", "warn"] = "stop"
    """Treatment of a lifecycle hook that raises: `stop` ends the run, `warn` goes on."""


@attrs.frozen(kw_only=True)
class RunConfig:
    """Options of one run of `agentrl run`; `agentrl config show` prints them with their defaults."""

    name: str = field(default="", validator=run_name)
    """Name of the run and of its folder; empty: a generated name."""
    seed: int = field(default=0, validator=seed_number)
    """Seed of everything random: order of tasks, sampling, a model built from nothing."""
    output_dir: str = field(default="runs", validator=filled)
    """Folder that holds the run directories, relative to the working directory."""
    model: ModelConfig = field(factory=ModelConfig)
    warm_start: WarmStartConfig | None = None
    data: DataConfig = field(factory=DataConfig)
    scorers: Mapping[str, Component] = field(factory=dict)
    """Scorers with options, or made of other scorers, under names that tasks and data.default_scorer can use."""
    workflow: Component | None = None
    """The agent; optional if Python passes it to `Trainer.train`."""
    sampling: SamplingConfig = field(factory=SamplingConfig)
    engine: Component = Component("embedded")
    """Inference engine of the policy: `embedded` in this process; packages bring `sglang` and `vllm`,
    for model servers."""
    gateway: GatewayConfig = field(factory=GatewayConfig)
    rollout: RolloutConfig = field(factory=RolloutConfig)
    tools: ToolsConfig = field(factory=ToolsConfig)
    context: Component = Component("none")
    """Context policy, which shortens the history of long episodes before the policy sees it: `none`, or a package's."""
    credit: Component = Component("tree")
    """Rule that shares a record's reward among its LLM calls: `tree` or `insertion_order`."""
    shaping: tuple[Component, ...] = ()
    """Transformations of the rewards before the advantages are computed, applied in this order."""
    advantage: Component = Component(AUTO)
    """Advantage estimator. `auto`: the one that the loss asks for, else `grpo`."""
    filters: tuple[Component, ...] = (Component("zero_variance"),)
    """Filters that select the groups and records to train on, applied in this order."""
    loss: Component = Component("grpo")
    """Loss to minimize, with its aggregation and corrections."""
    trainer: TrainerConfig = field(factory=TrainerConfig)
    eval: EvalConfig = field(factory=EvalConfig)
    store: Component = Component("sqlite")
    """Store of records, calls and steps: `sqlite`, one file per run."""
    trackers: tuple[Component, ...] = (Component("console"), Component("jsonl"), Component("curve"))
    """Outputs for metrics: `console` (the terminal), `jsonl` (metrics.jsonl), `curve` (reward.png), or a package's."""
    weights: WeightsConfig = field(factory=WeightsConfig)
    roles: RolesConfig = field(factory=RolesConfig)
    launcher: Component = Component("local")
    """Only `local`, on this machine; the option is there because configs of other trainers set it."""
    plugins: PluginsConfig = field(factory=PluginsConfig)


SHORTHAND: Mapping[str, str] = {
    "data": "train",
    **{name: "use" for name, kind in get_type_hints(RunConfig).items() if kind is Component},
}
"""Sections of which a bare string sets one option and leaves the others: `loss: grpo` sets `loss.use`.

`workflow` is none of them: its bare string replaces the section, because another agent has other options.
"""
