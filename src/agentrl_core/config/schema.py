"""The shape of a run's config: one attrs class per section, every option documented where it is defined."""

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
    """A validator that says what it expects, in the words of a config file."""

    expected: str
    holds: Callable[[Any], bool]

    def __call__(self, _instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Raise ValueError where `value` is not what is expected."""
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
    "http(s)://host[:port][/path], up to what stands before /chat/completions, without user, password or query",
    lambda value: re.fullmatch(r"https?://[^/?#@\s]+(/(?![^?#\s]*/?chat/completions/?$)[^?#\s]*)?", value) is not None,
)
_public_url = Must(
    "http(s)://host[:port][/path], without user, password, query or /v1",
    lambda value: re.fullmatch(r"https?://[^/?#@\s]+(/(?![^?#\s]*v1/?$)[^?#\s]*)?", value) is not None,
)
_proxy = Must(proxies.OPTION, proxies.is_option)
_no_policy = Must("no model named default: that is the policy", lambda value: "default" not in value)
_no_episode_variable = Must(
    "no variable that each episode sets (OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY)",
    lambda value: (
        not {f"{api}_{item}" for api in ("OPENAI", "ANTHROPIC") for item in ("BASE_URL", "API_KEY")} & set(value)
    ),
)


def _without(*names: str) -> Must:
    """Options must not take the names that stand beside them in a section."""
    return Must(f"no option named {' or '.join(names)}", lambda options: not set(names) & set(options))


AUTO = "auto"
"""Name of a component that another part of the config decides."""


@attrs.frozen
class Component:
    """A pluggable part: `{use: NAME, …options}`; a bare string means `{use: …}`."""

    use: str = field(validator=filled)
    """Registry name, `distribution/name`, `module:attr`, `file.py:attr` or `pkg.mod.Attr`."""
    options: Mapping[str, Any] = field(factory=dict, validator=_without("use"))
    """Given to the component's constructor, checked there."""


@attrs.frozen(kw_only=True)
class ModelConfig:
    """Where the policy comes from: `path` of a Hugging Face model directory, or `use` of a registered builder."""

    path: str | None = None
    """A local model directory with weights, tokenizer.json and a chat template."""
    use: str | None = None
    """Registry name of a model builder, `tiny` for one."""
    options: Mapping[str, Any] = field(factory=dict, validator=_without("path", "use", "dtype"))
    """Options of the builder; they stand beside `use`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights. A `bfloat16` one cannot hold the small steps of training, so that is refused but for
    `trainer.lr: 0`."""


@attrs.frozen(kw_only=True)
class WarmStartConfig:
    """Supervised fine-tuning before RL, in the same learner."""

    data: str = field(validator=filled)
    """JSONL of demonstrations: `{"messages": […], "tools": […]}`; assistant messages are trained."""
    steps: int = field(default=100, validator=positive)
    """Optimizer updates."""
    batch_size: int = field(default=24, validator=positive)
    """Demonstrations per update."""
    lr: float | None = field(default=None, validator=validators.optional(positive))
    """None: 2e-5 for a model that is loaded (`model.path`), 3e-3 for one that is built from nothing (`model.use`)."""
    warmup_steps: int = field(default=20, validator=not_negative)
    """Updates over which the learning rate rises from 0."""


@attrs.frozen(kw_only=True)
class DataConfig:
    """Tasks."""

    train: str | None = field(default=None, validator=validators.optional(filled))
    """JSONL file of tasks, relative to the config file; or a registered data set's `use` name. May be left out where
    online agents say what they work on."""
    eval: Mapping[str, str] | str | None = None
    """JSONL file of held-out tasks, or several by name: `{heldout: a.jsonl, seen: b.jsonl}`."""
    default_scorer: str | None = field(default=None, validator=validators.optional(filled))
    """Scorer of tasks that name none, used when the workflow returns no reward. None: `agentcpm`, where agentrl-judge
    is installed; one that is named here must be there."""
    allow_code: bool = False
    """Whether a task's `scorer` may be code, `file.py:name` or `module:name`, which the run then executes; else only
    what is registered, or defined under `scorers`."""
    shuffle: bool = True
    """Whether each pass goes through the tasks in another order."""


@attrs.frozen(kw_only=True)
class SamplingConfig:
    """The policy's sampling parameters."""

    temperature: float = field(default=1.0, validator=not_negative)
    """0, greedy, is for evaluation only."""
    max_tokens: int | None = field(default=None, validator=validators.optional(positive))
    """Per LLM call, where the agent asks for no limit; None: half of the model's context, at most 1,024."""
    min_tokens: int = field(default=0, validator=not_negative)
    """No reply ends before so many tokens: none is sampled that would end it. Not beside `stop`."""
    stop: tuple[str, ...] = field(default=(), validator=Must("texts that are not empty", all))
    """Texts that end a reply, where the agent names none."""
    stop_token_ids: tuple[int, ...] = field(
        default=(), validator=Must("token ids of at least 0", lambda value: all(item >= 0 for item in value))
    )
    """Token ids that end a reply, beside the model's own."""
    ignore_eos: bool = False
    """Replies do not end at the model's own end tokens, so for most at `max_tokens`: for measurements."""


@attrs.frozen(kw_only=True)
class UpstreamConfig:
    """Another provider's model, asked over OpenAI's chat completions."""

    url: str = field(validator=provider_url)
    """Up to and without `/chat/completions`: `https://api.openai.com/v1`."""
    model: str | None = None
    """The provider's name of the model; None: the one that agents use."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; never the key."""
    timeout_s: float = field(default=120.0, validator=positive)
    """Longest that the provider may say nothing."""
    max_retries: int = field(default=2, validator=not_negative)
    """Times that a call is sent again where it could not be made, was too much or met a server's failure."""
    proxy: str | None = field(default=None, validator=validators.optional(_proxy))
    """Address of an HTTP proxy, or `direct` for none; None: what HTTPS_PROXY, HTTP_PROXY and NO_PROXY say."""


@attrs.frozen(kw_only=True)
class GatewayConfig:
    """The HTTP server that agents talk to."""

    host: str = "127.0.0.1"
    """Address to listen at; one that other machines can reach takes an admin key in `admin_key_env`."""
    port: int = field(default=0, validator=port_number)
    """0 takes any free port."""
    public_url: str | None = field(default=None, validator=validators.optional(_public_url))
    """The `base_url` of sessions for agents elsewhere, such as `https://rl.example.com` behind a proxy with TLS. None:
    the host that they sent their request to, by https where the proxy's headers say so."""
    history: Literal["exact", "template"] = "exact"
    """`exact` continues a dialogue from the ids that were sampled; `template` renders it anew, and a past that
    the template changes begins a new sequence."""
    temperature: Literal["force", "refuse", "allow"] = "force"
    """What happens while training when an agent asks for another temperature than the policy's: it gets the policy's
    and is counted, an error, or what it asks for, if that is above 0."""
    tool_parser: str = "auto"
    """Tool-call parser: a registry name, `module:attr` or `file.py:attr`; `auto` recognises the format from the
    model's chat template."""
    unseen_tools: Literal["refuse", "allow"] = "refuse"
    """Response to an agent that offers tools to a model whose chat template has no place for them: `refuse` is an
    error, as the policy would never see them; `allow` goes on without, counts the call and notes it in the trace."""
    reasoning_parser: Literal["auto", "none", "think", "mistral", "minicpm"] = "auto"
    """Where the model writes thoughts, which are kept out of the content; `none` leaves them there."""
    upstreams: Mapping[str, UpstreamConfig] = field(factory=dict, validator=_no_policy)
    """Models that other providers answer for, by the name that agents ask for; their calls are never trained."""
    admin_key_env: str = field(default="AGENTRL_ADMIN_KEY", validator=filled)
    """Environment variable with the key that opens sessions; where it is unset, the run makes a key."""
    session_ttl_s: float = field(default=0.0, validator=not_negative)
    """A session that an agent from elsewhere opened ends after so long without a call; 0: not for that."""
    url_tokens: bool = True
    """Whether an episode's `base_url` alone lets callers on this machine in. `false` asks all for the `api_key`: needed
    where a proxy on this machine lets others reach the gateway and does not say so in any header."""
    pause_timeout_s: float = field(default=300.0, validator=positive)
    """Longest that a call waits while the gateway is paused."""
    max_session_replies: int = field(default=512, validator=positive)
    """Replies of one session that may be generated at once; a call beyond gets 429 and may come again."""
    max_session_calls_per_minute: int | None = field(default=None, validator=validators.optional(positive))
    """LLM calls of one session in a minute; null: as many as it likes."""
    max_replies_per_call: int = field(default=128, validator=positive)
    """Most replies that one LLM call may ask for: its prompts times `n`."""


@attrs.frozen(kw_only=True)
class AgentConfig:
    """How agents run (AReaL's `rollout.agent`)."""

    mode: Literal["inline", "subproc", "online"] = "inline"
    """`inline` runs the workflow in the run's process; `subproc` in processes of its own, where it may block, crash and
    be killed; with `online` agents from elsewhere open sessions by themselves."""
    turn_discount: float = field(default=1.0, validator=fraction)
    """An earlier turn gets the reward times this, once per later turn."""
    export_style: Literal["individual", "concat"] = "individual"
    """What is one training sequence: `individual`, an LLM call with the dialogue before it; `concat`, the dialogue up
    to a leaf with every call on the way. Both train each sampled token once, with the advantage of its own call, and
    compute what calls share once; they differ where `loss.unit: sequence` averages over sequences."""
    subproc_max_workers: int = field(default=4, validator=positive)
    """Processes of the mode `subproc`; each runs one episode at a time."""
    python: str | None = field(default=None, validator=validators.optional(filled))
    """With `subproc`: another Python interpreter, 3.8 or newer, that has the agent's packages; nothing of ours needs
    to be installed there. A path, relative to the config file, or a command."""
    env: Mapping[str, str] = field(factory=dict, validator=_no_episode_variable)
    """With `subproc`: further environment variables of the agents. They are stored with the run: secrets belong into
    the run's own environment, which the agents have as well."""
    subproc_max_memory_mb: int | None = field(default=None, validator=validators.optional(positive))
    """With `subproc`: an agent that uses more, with all that it starts, is killed and its record fails (Linux)."""
    reward_timeout_s: float = field(default=3600.0, validator=positive)
    """How long a session that an online agent has ended waits for its reward."""
    reward_grace_s: float = field(default=5.0, validator=positive)
    """Wait for further rewards after the end of a session that has some. It ends early once all calls have theirs,
    after a reward for the episode (without `interaction_id`), or after one with `final: true`."""
    lease_timeout_s: float = field(default=600.0, validator=positive)
    """Without data.train: how long a group waits for its next session of one task before it ends with those it has."""


@attrs.frozen(kw_only=True)
class RolloutConfig:
    """Sampling: how many, how parallel, how stale."""

    group_size: int = field(default=8, validator=positive)
    """Records per task that share a baseline."""
    tasks_per_step: int = field(default=16, validator=positive)
    """Groups per optimizer step."""
    max_concurrent_rollouts: int = field(default=32, validator=positive)
    """Episodes in flight."""
    max_head_offpolicyness: int = field(default=0, validator=not_negative)
    """Policy versions that a group may lag behind; 0 is synchronous."""
    timeout_s: float = field(default=300.0, validator=positive)
    """Wall-clock limit of one episode."""
    retries: int = field(default=1, validator=not_negative)
    """Times that a slot which did not end scored is sampled anew, alone."""
    min_group_size: int = field(default=2, validator=positive)
    """Scored records that make a group usable."""
    siblings: Literal["keep", "cancel"] = "keep"
    """What becomes of a group when one of its episodes does not end scored: `keep` goes on with the others; `cancel`
    ends them and their generations at once (AReaL's fail-fast), without retries, and the group is not usable."""
    requeue: int = field(default=1, validator=not_negative)
    """Times that a task whose group ended unusable is put back, to come again with the next policy version."""
    dynamic_sampling: bool = False
    """Groups that `filters` drop do not count for a step: others are sampled in their place (DAPO)."""
    max_oversampling: float = field(default=3.0, validator=at_least_one)
    """With dynamic_sampling: groups sampled for one step, at most, as a multiple of tasks_per_step. The step then goes
    on with those that have a signal."""
    max_failure_rate: float = field(default=0.5, validator=fraction)
    """The run stops when more than this share of the last `failure_window` records did not end scored, or none of
    them did: with 1.0 it goes on as long as anything works, but the more fail, the slower new episodes start."""
    failure_window: int = field(default=64, validator=positive)
    """Records that `max_failure_rate` looks back at."""
    agent: AgentConfig = field(factory=AgentConfig)


@attrs.frozen(kw_only=True)
class TrainerConfig:
    """Optimisation."""

    steps: int = field(default=100, validator=positive)
    """Optimizer steps of the run."""
    lr: float | None = field(default=None, validator=validators.optional(not_negative))
    """Learning rate of AdamW. None: 1e-6 for a model that is loaded (`model.path`), 4e-4 for one that is built from
    nothing (`model.use`); `config show` prints which."""
    warmup_steps: int = field(default=5, validator=not_negative)
    """Steps over which the learning rate rises from 0."""
    betas: tuple[float, float] = field(
        default=(0.9, 0.95),
        validator=Must("two numbers from 0 to below 1", lambda value: all(0 <= beta < 1 for beta in value)),
    )
    """Decay rates of AdamW's two moments."""
    weight_decay: float = field(default=0.0, validator=not_negative)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = field(default=1.0, validator=positive)
    """A longer gradient is shortened to this norm."""
    updates: int = field(default=1, validator=positive)
    """Optimizer updates per step, each on its share of the step's groups."""
    max_tokens_per_microbatch: int = field(default=8192, validator=positive)
    """Tokens per forward, where records that begin alike share theirs; a single longer record goes alone."""
    attention: Literal["auto", "rect", "flex", "dfs", "dense", "rows"] = "auto"
    """How records that begin alike share a forward; `auto` takes the fastest way that fits the model. `rect`: a flash
    call per node of their trie, on a CPU. `flex`: one kernel, on CUDA. `dfs`: node by node with the
    model's cache, backward with a second forward; for any model that can go on from its cache, and the least memory.
    `dense`: one call with a mask of T x T. `rows`: nothing is shared."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping what is inside it: less memory, a third more
    time."""
    save_steps: int = field(default=20, validator=positive)
    """Steps between checkpoints."""
    save_minutes: float = field(default=10.0, validator=positive)
    """A checkpoint is also written after the step that ends so long after the last one."""
    keep_last: int = field(default=3, validator=positive)
    """Checkpoints kept; older ones are removed."""
    max_logprob_gap: float = field(default=1e-3, validator=positive)
    """Largest |learner - engine logprob| on lag-0 tokens in fp32; beyond it the run stops."""
    stop_at_reward: float | None = None
    """End early once the mean training reward of the last 3 steps reaches this."""
    max_steps_without_signal: int = field(default=10, validator=positive)
    """The run stops after this many steps in a row in which no group had a signal."""
    non_finite: Literal["stop", "skip"] = "stop"
    """What happens where an advantage, a log-prob, the loss or the gradient is not finite; that update never takes
    place. `stop` ends the run, naming the records; `skip` takes the update without their loss terms, or not at all
    where no record is to blame or none is left."""
    max_steps_not_finite: int = field(default=5, validator=positive)
    """With `non_finite: skip`: the run stops after this many steps in a row in which something was left out."""
    routing_replay: bool = False
    """For mixture-of-experts models with several updates per step: every update takes, token by token, the experts that
    the weights before the step chose. What is trained and how the gate weighs them stays as it is."""
    threads: int = field(default=1, validator=positive)
    """Torch threads of the learner; never more than this machine's cores, less the engine's threads where both are busy
    at once (max_head_offpolicyness above 0). On a machine that others use, 1 is as fast."""


@attrs.frozen(kw_only=True)
class EvalConfig:
    """Evaluation on `data.eval`."""

    every: int = field(default=10, validator=not_negative)
    """Steps between evaluations; 0: only before and after."""
    tasks: int = field(default=256, validator=positive)
    """Tasks of each set in the evaluations before and after training."""
    tasks_during: int = field(default=64, validator=positive)
    """Tasks of each set in the evaluations during training."""
    temperature: float = field(default=1.0, validator=not_negative)
    """The policy's temperature in evaluations, where the agent asks for none."""


@attrs.frozen(kw_only=True)
class PluginsConfig:
    """Which packages may plug in."""

    block: tuple[str, ...] = ()
    """Distribution names that are not loaded."""
    modules: tuple[str, ...] = ()
    """Modules or files that are imported before anything is looked up: those that call `register_scorer`."""
    on_error: Literal["stop", "warn"] = "stop"
    """What happens when a lifecycle hook raises."""


@attrs.frozen(kw_only=True)
class RunConfig:
    """Everything that one run needs; `agentrl config show` prints it with its defaults."""

    name: str = field(default="", validator=run_name)
    """Name of the run and of its folder; generated where empty."""
    seed: int = field(default=0, validator=seed_number)
    """Of everything random: order of tasks, sampling, a model built from nothing."""
    output_dir: str = field(default="runs", validator=filled)
    """Folder of the runs, relative to the working directory."""
    model: ModelConfig = field(factory=ModelConfig)
    warm_start: WarmStartConfig | None = None
    data: DataConfig = field(factory=DataConfig)
    scorers: Mapping[str, Component] = field(factory=dict)
    """Scorers with options, and scorers made of others, under names that tasks and data.default_scorer may use."""
    workflow: Component | None = None
    """The agent; may be left out where Python passes it to `Trainer.train`."""
    sampling: SamplingConfig = field(factory=SamplingConfig)
    engine: Component = Component("embedded")
    """The engine that samples: `embedded` in this process, `openai_compatible` for a vLLM or SGLang server."""
    gateway: GatewayConfig = field(factory=GatewayConfig)
    rollout: RolloutConfig = field(factory=RolloutConfig)
    credit: Component = Component("tree")
    """Rule that shares a record's reward among its LLM calls: `tree` or `insertion_order`."""
    shaping: tuple[Component, ...] = ()
    """What the advantages see in place of the rewards as given, one after the other."""
    advantage: Component = Component(AUTO)
    """`auto`: the estimator that the loss asks for, `grpo` where it asks for none."""
    filters: tuple[Component, ...] = (Component("zero_variance"),)
    """Which groups and records a step trains, one filter after the other."""
    loss: Component = Component("grpo")
    """The surrogate that is minimised, its aggregation and its corrections."""
    trainer: TrainerConfig = field(factory=TrainerConfig)
    eval: EvalConfig = field(factory=EvalConfig)
    store: Component = Component("sqlite")
    """The store of records, calls and steps: `sqlite`, one file per run."""
    trackers: tuple[Component, ...] = (Component("console"), Component("jsonl"), Component("curve"))
    """Trackers of the run: `console` (the terminal), `jsonl` (metrics.jsonl), `curve` (reward.png), or a package's."""
    launcher: Component = Component("local")
    """Where the roles of a run live; `local` is this machine."""
    plugins: PluginsConfig = field(factory=PluginsConfig)


SHORTHAND: Mapping[str, str] = {
    "data": "train",
    **{name: "use" for name, kind in get_type_hints(RunConfig).items() if kind is Component},
}
"""Sections that may be a bare string, and the option that the string is then: `loss: grpo` is `{use: grpo}`."""
