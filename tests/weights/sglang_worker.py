"""A server with SGLang's routes for weights without a disk, whose one worker really joins a group and receives tensors.

Run as a process of its own: `python sglang_worker.py`; it writes its port. Sessions, groups and bodies are checked as
SGLang 0.5.23 does. `/received` tells the digests of the tensors that were loaded last.
"""

import hashlib
import json
import sys
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

TIMEOUT = timedelta(seconds=60)
KEYS = {
    "/init_weights_update_group": {
        "master_address",
        "master_port",
        "rank_offset",
        "world_size",
        "group_name",
        "backend",
    },
    "/destroy_weights_update_group": {"group_name"},
    "/begin_weight_update": set(),
    "/end_weight_update": set(),
    "/update_weights_from_distributed": {
        "names",
        "dtypes",
        "shapes",
        "group_name",
        "flush_cache",
        "weight_version",
        "load_format",
    },
    "/pause_generation": {"mode"},
    "/continue_generation": set(),
}


class Worker:
    def __init__(self):
        self.groups, self.weights, self.label, self.session, self.log = {}, {}, "default", False, []
        self.flushed = False
        self.fails = set()

    def answer(self, path, body):
        self.log.append(path)
        if unknown := set(body) - KEYS[path]:
            return 422, {"detail": f"unknown {sorted(unknown)}"}
        if path in self.fails:
            return 400, {"success": False, "message": f"{path} fails"}
        return getattr(self, path[1:])(**body)

    def init_weights_update_group(self, master_address, master_port, rank_offset, world_size, group_name, backend):
        where = f"tcp://{master_address}:{master_port}"
        store, rank, world_size = next(c10d.rendezvous(where, rank_offset, world_size, timeout=TIMEOUT))
        store.set_timeout(TIMEOUT)
        group, _ = c10d._new_process_group_helper(
            world_size,
            rank,
            [],
            c10d.Backend(backend),
            c10d.PrefixStore(group_name, store),
            group_name=group_name,
            backend_options=None,
            timeout=TIMEOUT,
            device_id=None,
        )
        c10d._world.pg_group_ranks[group] = {i: i for i in range(world_size)}
        self.groups[group_name] = group
        return 200, {"success": True}

    def destroy_weights_update_group(self, group_name):
        if group_name not in self.groups:
            return 400, {"success": False, "message": "The group to be destroyed does not exist."}
        dist.destroy_process_group(self.groups.pop(group_name))
        return 200, {"success": True}

    def begin_weight_update(self):
        if self.session:
            return 400, {"success": False, "message": "a weight-update session is already open"}
        self.session, self.received = True, {}
        return 200, {"success": True}

    def update_weights_from_distributed(
        self, names, dtypes, shapes, group_name, flush_cache=True, weight_version=None, load_format=None
    ):
        if not self.session:
            return 400, {"success": False, "message": "must run between begin_weight_update() and end_weight_update()"}
        group = self.groups[group_name]
        empties = [torch.empty(shape, dtype=getattr(torch, dtype)) for dtype, shape in zip(dtypes, shapes, strict=True)]
        if load_format == "flattened_bucket":
            flat = torch.empty(sum(tensor.nbytes for tensor in empties), dtype=torch.uint8)
            dist.broadcast(flat, src=0, group=group)
            pieces = flat.split([tensor.nbytes for tensor in empties])
            pairs = zip(pieces, empties, strict=True)
            empties = [piece.view(tensor.dtype).reshape(tensor.shape) for piece, tensor in pairs]
        else:
            works = [dist.broadcast(tensor, src=0, group=group, async_op=True) for tensor in empties]
            for work in works:
                work.wait()
        self.received |= dict(zip(names, empties, strict=True))
        self.flushed = self.flushed or flush_cache
        self.label = weight_version or self.label
        return 200, {"success": True}

    def end_weight_update(self):
        if not self.session:
            return 400, {"success": False, "message": "no weight-update session is open"}
        self.session, self.weights = False, self.received
        return 200, {"success": True}

    def pause_generation(self, mode):
        return 200, {"status": "ok"}

    def continue_generation(self):
        return 200, {"status": "ok"}

    def told(self, path):
        if path == "/received":
            digests = {
                name: hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
                for name, tensor in self.weights.items()
            }
            return {"label": self.label, "flushed": self.flushed, "digests": digests, "log": self.log}
        if path.startswith("/fail/"):
            self.fails = {f"/{name}" for name in path.removeprefix("/fail/").split(",") if name}
            return {}
        if path == "/forget":  # as a restart does
            self.__init__()
            return {}
        card = {"id": "policy", "max_model_len": 512, "root": ""}
        return {
            "/v1/models": {"data": [card]},
            "/model_info": {"model_path": "", "weight_version": self.label},
            "/server_info": {"tp_size": 1, "dp_size": 1, "pp_size": 1},
        }.get(path)


def handler(worker):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            reply = worker.told(self.path)
            self._reply(200, reply) if reply is not None else self._reply(404, {})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
            try:
                status, reply = worker.answer(self.path, body)
            except (RuntimeError, KeyError, TypeError, ValueError) as error:
                status, reply = 500, {"message": f"{type(error).__name__}: {error}"}
            self._reply(status, reply)

        def _reply(self, status, reply):
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    return Handler


if __name__ == "__main__":
    torch.set_num_threads(1)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(Worker()))
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
