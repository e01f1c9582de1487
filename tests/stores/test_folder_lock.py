"""Locks of folders: one holder, gone with its process."""

import signal
import stat
import subprocess
import sys
import threading

import pytest

from agentrl_core.stores.folder_lock import FolderInUseError, folder_lock, is_abandoned

HOLDER = (
    "import sys, time; from pathlib import Path; from agentrl_core.stores.folder_lock import folder_lock\n"
    "with folder_lock(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()\n"
)


def test_a_folder_that_nobody_ever_held_is_not_abandoned(tmp_path):
    assert not is_abandoned(tmp_path)
    assert not is_abandoned(tmp_path / "nowhere")


def test_a_killed_process_leaves_its_folder_abandoned(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "held\n"
            assert not is_abandoned(tmp_path)
            with pytest.raises(FolderInUseError, match=str(process.pid)), folder_lock(tmp_path):
                pass
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        finally:
            process.kill()
    assert is_abandoned(tmp_path)
    with folder_lock(tmp_path):
        assert not is_abandoned(tmp_path)


def test_those_who_only_ask_do_not_keep_anyone_from_the_lock(tmp_path):
    with folder_lock(tmp_path):
        pass
    ended = threading.Event()

    def ask():
        while not ended.is_set():
            is_abandoned(tmp_path)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(200):
            with folder_lock(tmp_path):
                pass
    finally:
        ended.set()
        asking.join()


def test_only_its_owner_reads_a_lock(tmp_path):
    with folder_lock(tmp_path):
        assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o600
