"""Faulty agents, each with one fault: blocking, crashing, leaking and others."""

import asyncio
import json
import math
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path


class Sound:
    """Asks once and says how it went; what the others begin with."""

    def ask(self, base_url, api_key, content="2 + 2?"):
        body = json.dumps({"model": "default", "messages": [{"role": "user", "content": content}]}).encode()
        request = urllib.request.Request(
            f"{base_url}/v1/chat/completions", body, {"authorization": f"Bearer {api_key}", "content-type": "text/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)

    async def run(self, data, *, base_url, api_key):
        if data.get("is_sound"):
            await asyncio.to_thread(self.ask, base_url, api_key)
            return 1.0
        return await self.misbehave(data, base_url, api_key)

    async def misbehave(self, data, base_url, api_key):
        await asyncio.to_thread(self.ask, base_url, api_key)
        return await self.spoil(data, base_url, api_key)

    async def spoil(self, data, base_url, api_key):
        return 1.0


class Raises(Sound):
    async def spoil(self, data, base_url, api_key):
        raise ValueError("no such tool: 'seach'")


class Hangs(Sound):
    async def spoil(self, data, base_url, api_key):
        await asyncio.Event().wait()


class Blocks(Sound):
    async def spoil(self, data, base_url, api_key):
        time.sleep(3600)


class SysExits(Sound):
    async def spoil(self, data, base_url, api_key):
        sys.exit("the agent gave up")


class Dies(Sound):
    async def spoil(self, data, base_url, api_key):
        sys.stderr.write("about to die\n")
        sys.stderr.flush()
        os._exit(3)


class Forks(Sound):
    """Leaves a child behind that would go on for an hour, and tells its number."""

    async def spoil(self, data, base_url, api_key):
        child = os.fork()
        if child == 0:
            time.sleep(3600)
            os._exit(0)
        Path(data["pid_file"]).write_text(str(child))
        return 1.0


class Leaks(Sound):
    async def spoil(self, data, base_url, api_key):
        kept = []
        while True:
            kept.append(bytearray(16 * 2**20))


class NotANumber(Sound):
    async def spoil(self, data, base_url, api_key):
        return math.nan


class UnknownId(Sound):
    async def spoil(self, data, base_url, api_key):
        return {"chatcmpl-of-another-episode": 1.0}


class HugeDict(Sound):
    async def spoil(self, data, base_url, api_key):
        return {f"chatcmpl-{number}": 1.0 for number in range(200_000)}


class NoCall(Sound):
    async def misbehave(self, data, base_url, api_key):
        return 1.0


class CallsAfterTheEnd(Sound):
    """Goes on calling when its episode is over, and writes down what it is told."""

    async def spoil(self, data, base_url, api_key):
        def later():
            while not Path(data["gate"]).exists():
                time.sleep(0.01)
            try:
                self.ask(base_url, api_key, "still there?")
                told = "answered"
            except urllib.error.HTTPError as error:
                told = f"{error.code} {json.load(error)['error']['message']}"
            part = Path(data["told"] + ".part")
            part.write_text(told)
            part.rename(data["told"])

        threading.Thread(target=later, daemon=True).start()
        return 1.0


class Unscored(Sound):
    async def spoil(self, data, base_url, api_key):
        return None
