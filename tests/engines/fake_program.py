# ruff: noqa: T201 - its output is its log
"""Program that stands in for a model server: `fake_program.py PORT FOLDER MODE`, with the standard library only.

It writes its process ids and its environment into FOLDER. Modes: `serve`; `die` at the start; `deaf`, which never
listens; `busy`, which answers 503 to the first request.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PORT, FOLDER, MODE = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]


class Handler(http.server.BaseHTTPRequestHandler):
    seen = 0

    def do_GET(self):
        type(self).seen += 1
        self.send_response(503 if MODE == "busy" and self.seen == 1 else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, text, *arguments):
        print(text % arguments, flush=True)


if MODE == "die":
    print("loading", flush=True)
    print("RuntimeError: no room for the model", file=sys.stderr)
    print(*(f"line {number}" for number in range(40)), sep="\n", file=sys.stderr)
    sys.exit(3)
# A worker in a session of its own, deaf to the polite signal: what holds a GPU must end all the same.
worker = subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"],
    start_new_session=True,
)
told = {"pids": [os.getpid(), worker.pid], "environ": dict(os.environ), "argv": sys.argv}
draft = FOLDER / f"{PORT}.draft"
draft.write_text(json.dumps(told))
draft.rename(FOLDER / f"{PORT}.json")
if MODE == "deaf":
    time.sleep(600)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
