from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.config.sampling_sections import ToolsConfig
from agentrl_core.tools.health import SERVER_FAULTS, Health
from agentrl_core.types import ToolOutcome


@given(
    outcomes=st.lists(st.sampled_from(list(ToolOutcome)), max_size=30),
    window=st.integers(1, 6),
    limit=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_only_a_full_window_with_too_many_faults_ends_the_run(outcomes, window, limit):
    health = Health("corpus", ToolsConfig(failure_window=window, max_failure_rate=limit))
    for number, outcome in enumerate(outcomes, start=1):
        last = outcomes[max(0, number - window) : number]
        faults = sum(item in SERVER_FAULTS for item in last)
        too_many = faults > limit * window or faults == window
        ends = outcome in SERVER_FAULTS and len(last) == window and too_many
        assert (health.add(outcome, "down") is not None) == ends


def test_the_error_names_server_counts_and_last_error():
    health = Health("corpus", ToolsConfig(failure_window=2, max_failure_rate=0.5))
    assert health.add(ToolOutcome.NOT_SENT, "refused") is None
    told = str(health.add(ToolOutcome.DELIVERY_UNKNOWN, "connection lost"))
    assert told.startswith("tool server 'corpus': 2 of its last 2 calls failed (not_sent 1, delivery_unknown 1), more")
    assert "the last error: connection lost." in told
