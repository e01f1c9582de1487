"""AReaL's reward functions: the verdicts of the released ones, within a limit of time that holds."""

import asyncio
import importlib.util
import sys
import threading
import time

import pytest

from agentrl_areal.api import AsyncRewardWrapper
from agentrl_areal.reward import MathVerifyWorker, TooLongError, get_math_verify_worker, within
from agentrl_areal.reward.clevr_count_70k import clevr_count_70k_reward_fn
from agentrl_areal.reward.geometry3k import geometry3k_reward_fn
from agentrl_areal.reward.gsm8k import gsm8k_reward_fn
from agentrl_core.concurrency.processes import close_workers

GSM8K = [
    (r"so \boxed{4}", "2 + 2 = <<2+2=4>>4\n#### 4", 1.0),
    (r"\boxed{5}", "#### 4", 0.0),
    ("The answer is 4.", "4", 1.0),
    ("4 apples and 5 pears", "#### 5", 1.0),
    (r"\boxed{1,234}", "#### 1234", 1.0),
    (r"$\frac{1}{2}$", "0.5", 1.0),
    (r"\boxed{0.333333}", r"\boxed{\frac{1}{3}}", 1.0),
    (r"\boxed{0.33}", r"\boxed{\frac{1}{3}}", 0.0),
    ("I do not know", "4", 0.0),
    ("", "4", 0.0),
    ("4", "", 0.0),
    (None, "4", 0.0),
    ("4", None, 0.0),
    (4, 4, 1.0),
    (r"\boxed{4", "4", None),
    ("-4", "4", 0.0),
    (r"\boxed{x^2+2x+1}", r"\boxed{(x+1)^2}", 1.0),
    ("final answer = 7 or 8", "8", None),
    ("\\" * 50, "1", 0.0),
    ("<|im_end|>4<|im_end|>", "4", None),
]
GEOMETRY3K = [
    ("[4]", "4", 1.0),
    ("[4] then [5]", "5", 1.0),
    ("[5] then [4]", "5", 0.0),
    ("it is 1,234", "1234", 1.0),
    ("it is -0.5", "-.5", None),
    (r"[\frac{1}{2}]", "[0.5]", None),
    ("none", "4", 0.0),
    ("[]", "4", 0.0),
    ("[4]", "", 0.0),
    (None, None, None),
    (["4"], "4", None),
]
CLEVR = [
    ("[4]", "4", 1.0),
    ("[4] [5]", "5", 1.0),
    ("[4.0]", "4", 0.0),
    ("[4]", " 4 ", 1.0),
    ("[ 4 ]", "4", 0.0),
    ("4", "4", 0.0),
    ("nothing", "", 1.0),
    ("[4]", None, 0.0),
]


@pytest.fixture(scope="session")
def released_rewards(released, tmp_path_factory):
    """AReaL's own package of rewards, under another name; of ours it uses the loggers only."""
    folder = tmp_path_factory.mktemp("rewards") / "released_reward"
    folder.mkdir()
    for name in ("__init__", "gsm8k", "geometry3k", "clevr_count_70k"):
        folder.joinpath(f"{name}.py").write_text(released.migrated(f"reward/{name}.py"))
    spec = importlib.util.spec_from_file_location("released_reward", folder / "__init__.py")
    sys.modules["released_reward"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    yield importlib.import_module
    for name in [name for name in sys.modules if name.partition(".")[0] == "released_reward"]:
        del sys.modules[name]


def judged(function, reply, answer):
    return function("prompt", reply, [1], [2], answer, id="t", messages=[])


@pytest.mark.parametrize(
    ("ours", "cases"),
    [(gsm8k_reward_fn, GSM8K), (geometry3k_reward_fn, GEOMETRY3K), (clevr_count_70k_reward_fn, CLEVR)],
)
def test_every_verdict_is_that_of_the_released_function(released_rewards, ours, cases):
    module = released_rewards(f"released_reward.{ours.__module__.rpartition('.')[2]}")
    theirs = getattr(module, ours.__name__)
    for reply, answer, verdict in cases:
        found = judged(ours, reply, answer)
        assert found == judged(theirs, reply, answer), (reply, answer)
        assert type(found) is float
        assert verdict is None or found == verdict, (reply, answer)


@pytest.mark.parametrize(("anchored", "precision"), [(True, 6), (True, 2), (False, 6)])
def test_the_options_of_the_comparison_are_those_of_the_released_one(released_rewards, anchored, precision):
    theirs = released_rewards("released_reward").MathVerifyWorker(not anchored, precision, timeout=None)
    ours = MathVerifyWorker(not anchored, precision, timeout=None)
    for reply, answer in [("answer = 4", "4"), ("4", "4"), ("x 4 y", "4"), (r"\boxed{0.3333}", r"\boxed{1/3}")]:
        assert ours.verify(reply, answer) == theirs.verify(reply, answer), (reply, answer)


def test_one_worker_serves_a_process():
    assert get_math_verify_worker() is get_math_verify_worker()


def test_what_takes_too_long_is_broken_off_on_a_main_thread_whatever_it_catches():
    def stubborn():
        while True:
            try:
                time.sleep(0.01)
            except Exception:  # noqa: BLE001
                continue

    with pytest.raises(TooLongError):
        within(0.05, stubborn)
    assert within(5.0, lambda: 4) == within(None, lambda: 4) == 4


def test_what_takes_too_long_is_left_on_another_thread():
    told, go = [], threading.Event()

    def ask():
        try:
            within(0.05, go.wait)
        except TooLongError:
            told.append("too long")
        told.append(within(5.0, lambda: 4))
        with pytest.raises(ZeroDivisionError):
            within(5.0, lambda: 1 / 0)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(60)
    go.set()
    assert told == ["too long", 4]


def test_a_comparison_that_takes_too_long_gives_nothing(monkeypatch, caplog):
    def endless(*_):
        raise TooLongError

    worker = MathVerifyWorker(timeout=0.5)
    monkeypatch.setattr(worker, "_compared", endless)
    assert worker.verify("1", "1") == 0.0
    assert "took more than 0.5 s" in caplog.text


@pytest.fixture
def _workers_end():
    yield
    close_workers()


@pytest.mark.usefixtures("_workers_end")
def test_a_timeout_gives_zero_and_an_error_is_tried_again_and_raised(tmp_path, monkeypatch):
    tmp_path.joinpath("areal_rewards.py").write_text(
        "import time\n\n\ndef slow(seconds):\n    time.sleep(seconds)\n    return 1\n\n\n"
        "def wrong():\n    return 1 / 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    slow = AsyncRewardWrapper("areal_rewards.slow", timeout_seconds=0.5)
    assert asyncio.run(slow(600)) == 0.0
    assert asyncio.run(slow(0)) == 1.0
    with pytest.raises(ZeroDivisionError):
        asyncio.run(AsyncRewardWrapper("areal_rewards.wrong", 15, None, 1)())
