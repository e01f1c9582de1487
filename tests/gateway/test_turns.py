"""Turns of tasks that are ready at once: one in each iteration of the event loop, first come, first served."""

import asyncio

from agentrl_core.gateway.serving.turns import Turns


async def went_on(number, turns, order):
    await turns.take()
    order.append(number)


def test_one_task_goes_on_in_each_iteration_in_the_order_of_coming():
    async def main():
        turns, order, counts = Turns(), [], []
        tasks = [asyncio.ensure_future(went_on(number, turns, order)) for number in range(20)]
        while len(order) < 20:
            await asyncio.sleep(0)
            counts.append(len(order))
        await asyncio.gather(*tasks)
        return order, counts

    order, counts = asyncio.run(asyncio.wait_for(main(), 20))
    assert order == list(range(20))
    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) == 1


def test_a_cancelled_task_takes_no_turn_from_the_others():
    async def main():
        turns, order = Turns(), []
        tasks = [asyncio.ensure_future(went_on(number, turns, order)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await went_on(4, turns, order)
        return order

    assert asyncio.run(asyncio.wait_for(main(), 20)) == [0, 3, 4]
