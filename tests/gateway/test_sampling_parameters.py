"""What the policy fixes and what the agent may choose."""

import subprocess
import sys

import pytest

from agentrl_core.api.kept_tokens import ids_of
from agentrl_core.config.sampling_sections import SamplingConfig
from agentrl_core.engines import scripted
from agentrl_core.gateway.sampling_parameters import call_seed

BODY = {"messages": [{"role": "user", "content": "hello"}]}
ASKED = {"temperature": 0, "top_p": 0.5, "top_k": 3}


def only(store):
    (interaction,) = store.interactions
    return interaction


def test_training_forces_the_policys_distribution_and_counts_it(gateway, session, send, store, engine):
    send(session, {**BODY, **ASKED})
    sampling = only(store).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert only(store).requested == ASKED
    assert engine.log[0].request.sampling == sampling
    assert gateway.forced_temperatures == 1


def test_asking_for_the_policys_temperature_is_nothing_special(gateway, session, send, store):
    send(session, {**BODY, "temperature": 1, "top_p": 1})
    assert only(store).requested == {}
    assert gateway.forced_temperatures == 0


def test_refuse_names_both_temperatures(make_gateway, open_session, send_to, store):
    gateway = make_gateway(temperature="refuse")
    reply = send_to(gateway, open_session(gateway), {**BODY, "temperature": 0.7})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "temperature"
    assert "0.7" in reply.json()["error"]["message"]
    assert store.interactions == []


def test_allow_lets_the_agent_choose_but_not_zero(make_gateway, open_session, send_to, store):
    gateway = make_gateway(temperature="allow")
    session = open_session(gateway)
    assert send_to(gateway, session, {**BODY, "temperature": 0}).status_code == 400
    assert send_to(gateway, session, {**BODY, "temperature": 0.5, "top_p": 0.5, "top_k": 7}).status_code == 200
    assert (only(store).sampling.temperature, only(store).sampling.top_p, only(store).sampling.top_k) == (0.5, 0.5, 7)
    assert gateway.forced_temperatures == 0
    assert only(store).requested == {}
    assert len(only(store).kept) == len(only(store).output_ids)


@pytest.mark.parametrize(("asked", "named"), [({"top_p": 0.5}, "top_p 0.5 differs from the policy's 0.9"),
                                              ({"top_k": 3}, "top_k 3 differs from the policy's 20")])  # fmt: skip
def test_refuse_names_another_top_p_and_top_k(make_gateway, open_session, send_to, store, asked, named):
    gateway = make_gateway(temperature="refuse", sampling=SamplingConfig(top_p=0.9, top_k=20))
    session = open_session(gateway)
    reply = send_to(gateway, session, {**BODY, **asked})
    assert reply.status_code == 400
    assert named in reply.json()["error"]["message"]
    assert (reply.json()["error"]["param"], store.interactions) == (*asked, [])
    assert send_to(gateway, session, {**BODY, "top_p": 0.9, "top_k": 20}).status_code == 200


def test_the_policys_top_p_and_top_k_are_sampled_with_masks(make_gateway, open_session, send_to, store, engine):
    gateway = make_gateway(sampling=SamplingConfig(top_p=0.9, top_k=20))
    send_to(gateway, open_session(gateway), {**BODY, "top_p": 1, "top_k": -1})
    assert (only(store).sampling.top_p, only(store).sampling.top_k) == (0.9, 20)
    assert only(store).requested == {"top_p": 1, "top_k": -1}
    assert engine.log[0].request.return_kept
    assert all(token in ids_of(mask) for token, mask in zip(only(store).output_ids, only(store).kept, strict=True))


@pytest.mark.parametrize("how", ["evaluation", "not trained", "all tokens"])
def test_calls_that_need_no_masks_ask_for_none(make_gateway, open_session, send_to, store, engine, how):
    sampling = SamplingConfig() if how == "all tokens" else SamplingConfig(top_k=20)
    gateway = make_gateway(sampling=sampling)
    headers = {"x-agentrl-trainable": "false"} if how == "not trained" else {}
    session = open_session(gateway, is_eval=how == "evaluation", sampling=sampling)
    assert send_to(gateway, session, BODY, headers=headers).status_code == 200
    assert not engine.log[0].request.return_kept
    assert only(store).kept == ()


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_without_masks_ends_a_run_that_needs_them(
    make_gateway, open_session, send_to, store, engine, monkeypatch, stream
):
    monkeypatch.setattr(scripted, "_mask", lambda *_: b"")
    gateway = make_gateway(sampling=SamplingConfig(top_k=20))
    reply = send_to(gateway, open_session(gateway), {**BODY, "stream": stream})
    assert "returned no sampling masks" in reply.text
    assert store.interactions == []


def test_evaluation_samples_as_the_agent_likes(make_gateway, open_session, send_to, store):
    gateway = make_gateway(temperature="refuse")
    send_to(gateway, open_session(gateway, is_eval=True), {**BODY, **ASKED})
    sampling = only(store).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.5, 3)
    assert only(store).requested == {}


def test_a_sessions_own_defaults_win(gateway, send_to, store, open_session):
    sampling = SamplingConfig(temperature=0.5, max_tokens=9)
    session = open_session(gateway, is_eval=True, sampling=sampling)
    send_to(gateway, session, BODY)
    assert (only(store).sampling.temperature, only(store).sampling.max_tokens) == (0.5, 9)


@pytest.mark.parametrize("rule", ["force", "refuse", "allow"])
def test_a_call_that_is_not_trained_samples_as_the_agent_likes(make_gateway, open_session, send_to, store, rule):
    gateway = make_gateway(temperature=rule)
    headers = {"x-agentrl-trainable": "false"}
    assert send_to(gateway, open_session(gateway), {**BODY, **ASKED}, headers=headers).status_code == 200
    sampling = only(store).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.5, 3)
    assert (only(store).requested, only(store).trainable) == ({}, False)
    assert gateway.forced_temperatures == 0


def test_parameters_without_effect_are_recorded_and_counted(gateway, open_session, send_to, store):
    session = open_session(gateway)
    vain = {"frequency_penalty": 0.5, "logit_bias": {"7": 1}, "seed": 0, "min_p": 0.1, "presence_penalty": -1}
    send_to(gateway, session, {**BODY, **vain})
    assert store.interactions[0].requested == vain
    send_to(gateway, session, {**BODY, "top_p": 0.5, "seed": 4, "top_k": 2})
    send_to(
        gateway, session, {**BODY, "frequency_penalty": 0, "logit_bias": {}, "min_p": 0.0, "repetition_penalty": 1.0}
    )
    send_to(gateway, session, {**BODY, "user": "me", "top_p": 1})
    once = ("frequency_penalty", "logit_bias", "min_p", "presence_penalty", "top_p", "top_k")
    assert gateway.without_effect == {"seed": 2, **dict.fromkeys(once, 1)}


@pytest.mark.parametrize(
    ("asked", "configured", "expected"),
    [
        ({}, 20, 20),
        ({"max_tokens": 5}, 20, 5),
        ({"max_tokens": 50}, 20, 50),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 20, 6),
        ({}, None, 500),
        ({"max_tokens": 5000}, 20, "room"),
        ({}, 5000, "room"),
    ],
)
def test_the_limit_is_the_agents_else_the_configs_and_fits_the_context(
    make_gateway, open_session, send_to, store, engine, asked, configured, expected
):
    engine.context_length = 1000
    gateway = make_gateway(sampling=SamplingConfig(max_tokens=configured))
    send_to(gateway, open_session(gateway), {**BODY, **asked})
    room = 1000 - len(only(store).prompt_ids)
    assert only(store).sampling.max_tokens == (room if expected == "room" else expected)


def test_the_end_of_turn_stops_every_call(session, send, store, chat):
    send(session, BODY)
    assert only(store).sampling.stop_token_ids == chat.stop_token_ids


def test_the_configs_stops_and_least_tokens_hold_for_calls_that_name_none(
    make_gateway, open_session, send_to, store, chat
):
    gateway = make_gateway(sampling=SamplingConfig(max_tokens=9, min_tokens=2, stop_token_ids=(5, 7)))
    send_to(gateway, open_session(gateway), BODY)
    sampling = only(store).sampling
    assert (sampling.min_tokens, sampling.stop_token_ids) == (2, (*chat.stop_token_ids, 5, 7))


@pytest.mark.parametrize("asked", [None, ["b"]])
def test_a_reply_ends_before_the_configs_stop_strings_or_the_agents_own(
    make_gateway, open_session, send_to, store, engine, asked
):
    engine.replies = ["abc"]
    gateway = make_gateway(sampling=SamplingConfig(stop=("c",)))
    reply = send_to(gateway, open_session(gateway), {**BODY, "stop": asked}).json()
    assert reply["choices"][0]["message"]["content"] == ("ab" if asked is None else "a")
    assert only(store).sampling.stop == (("c",) if asked is None else ("b",))


def test_the_models_own_ends_are_ignored_where_the_config_says_so(make_gateway, open_session, send_to, store):
    gateway = make_gateway(sampling=SamplingConfig(ignore_eos=True, stop_token_ids=(5,)))
    send_to(gateway, open_session(gateway), BODY)
    assert (only(store).sampling.ignore_eos, only(store).sampling.stop_token_ids) == (True, (5,))


def test_every_call_has_its_own_seed_that_only_depends_on_its_place(make_gateway, open_session, send_to, store):
    for _ in range(2):
        gateway = make_gateway()
        session = open_session(gateway, seed_key=(3, 0))
        for _ in range(2):
            send_to(gateway, session, BODY)
    send_to(gateway, open_session(gateway, seed_key=(3, 1)), BODY)
    seeds = [interaction.sampling.seed for interaction in store.interactions]
    assert seeds[:2] == seeds[2:4] == [call_seed(7, 3, 0, 0), call_seed(7, 3, 0, 1)]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_the_same_in_another_process():
    program = "from agentrl_core.gateway.sampling_parameters import call_seed; print(call_seed(1, 2, 3))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == call_seed(1, 2, 3)


@pytest.mark.parametrize("is_eval", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 2**40),
        ("temperature", -1),
        ("temperature", 3),
        ("max_tokens", 0),
        ("max_completion_tokens", 0),
        ("stop", [""]),
        ("stop", ["x"] * 17),
    ],
)
def test_no_value_that_an_engine_cannot_sample_at_gets_to_it(
    gateway, open_session, send_to, engine, is_eval, name, value
):
    reply = send_to(gateway, open_session(gateway, is_eval=is_eval), {**BODY, name: value})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
    assert engine.log == []
    assert gateway.fatal is None


def test_a_temperature_too_small_to_divide_by_is_refused(gateway, open_session, send_to, engine):
    assert send_to(gateway, open_session(gateway, is_eval=True), {**BODY, "temperature": 1e-30}).status_code == 400
    assert send_to(gateway, open_session(gateway), {**BODY, "temperature": 1e-30}).status_code == 200  # forced to 1


@pytest.mark.parametrize(
    ("context_length", "sampling", "limit"),
    [
        (64, {}, 32),
        (100_000, {}, 1024),
        (1, {}, 1),
        (64, {"min_tokens": 40}, 40),
        (64, {"max_tokens": 50}, 50),
    ],
)
def test_a_reply_without_a_limit_has_one_that_follows_from_the_context(
    make_gateway, engine, context_length, sampling, limit
):
    engine.context_length = context_length
    assert make_gateway(sampling=SamplingConfig(**sampling)).max_tokens == limit
