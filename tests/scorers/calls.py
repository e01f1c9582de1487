"""Scorers for the tests of `cpu_bound`; they are in a module so that other processes can import them."""

import os
import time


def pid(request):
    return float(os.getpid())


def hang(request):
    time.sleep(1000)


def other(model_answer, ground_truth):
    return 1.0


def scaled(request, *, factor: float = 1.0):
    return factor


scaled.cpu_bound = True


async def asynchronous(request):
    return 1.0
