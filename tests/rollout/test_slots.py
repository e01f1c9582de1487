"""Slots of concurrent episodes: order, a limit that changes, cancellation, and idle time."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.rollout.slots import EpisodeSlots


async def turn():
    """Let all other coroutines go on until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


async def hold(slots, name, inside, gate):
    async with slots:
        inside.append(name)
        try:
            await gate.wait()
        finally:
            inside.remove(name)


def test_slots_are_given_out_in_order():
    async def scenario():
        slots, inside, gates = EpisodeSlots(2), [], [asyncio.Event() for _ in range(5)]
        tasks = [asyncio.create_task(hold(slots, number, inside, gate)) for number, gate in enumerate(gates)]
        seen = []
        for number in (1, 0, 2, 3, 4):
            await turn()
            seen.append(list(inside))
            gates[number].set()
        await asyncio.gather(*tasks)
        return seen

    assert asyncio.run(scenario()) == [[0, 1], [0, 2], [2, 3], [3, 4], [4]]


def test_a_slot_is_not_lost_if_its_holder_is_cancelled_as_it_gets_it():
    async def scenario():
        slots, inside, gate = EpisodeSlots(1), [], asyncio.Event()
        first, second, third = (asyncio.create_task(hold(slots, name, inside, gate)) for name in "abc")
        await turn()
        first.cancel()
        await asyncio.wait({first})  # its slot was given to the second one, which has not gone on yet
        second.cancel()
        await turn()
        assert inside == ["c"]
        gate.set()
        await third
        assert second.cancelled()

    asyncio.run(scenario())


def test_idle_time_is_the_time_without_an_episode():
    async def scenario():
        now = [0.0]
        slots = EpisodeSlots(2, clock=lambda: now[0])
        now[0] = 5.0
        slots.start()
        now[0] = 7.0
        assert slots.idle_s == 2.0
        async with slots:
            now[0] = 17.0
            async with slots:
                now[0] = 18.0
            assert slots.idle_s == 2.0
        now[0] = 21.0
        assert slots.idle_s == 5.0

    asyncio.run(scenario())


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 20)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("limit"), st.integers(0, 4)),
    ),
    max_size=40,
)


@given(MOVES)
def test_after_any_moves_the_first_ones_that_wait_hold_what_the_limit_allows(moves):
    """Against a list of those that hold a slot or wait, in their order."""

    async def scenario():
        slots, limit, inside = EpisodeSlots(2), 2, []
        tasks, gates, holding, waiting = {}, {}, [], []
        for number, (move, choice) in enumerate(moves):
            if move == "enter":
                gates[number] = asyncio.Event()
                tasks[number] = asyncio.create_task(hold(slots, number, inside, gates[number]))
                waiting.append(number)
            elif move == "limit":
                slots.limit = limit = choice
            else:
                those = holding if move == "leave" else holding + waiting
                if those:
                    chosen = those[choice % len(those)]
                    gates[chosen].set() if move == "leave" else tasks[chosen].cancel()
                    (holding if chosen in holding else waiting).remove(chosen)
            while waiting and len(holding) < limit:
                holding.append(waiting.pop(0))
            await turn()
            assert inside == holding
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        slots.limit = 1
        async with asyncio.timeout(30), slots:
            pass

    asyncio.run(scenario())
