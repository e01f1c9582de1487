"""A stand-in for the command lines of Docker and Podman, for machines without an engine; run as a program.

It knows exactly the options that the package uses and refuses all others, and keeps containers as folders with
processes: paths of a container's folders are replaced in commands. `FAKE_ENGINE` names its folder; a line of its file
`fail` names a subcommand that fails.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

STATE = Path(os.environ["FAKE_ENGINE"])
PLACES = re.compile(r"(?<![\w./])/(tests|logs|app|solution|tmp/\.agentrl)")


def fail(text, status=1):
    sys.stderr.write(f"{text}\n")
    raise SystemExit(status)


def say(text):
    sys.stdout.write(f"{text}\n")


def options(program, /, *flags, **valued):
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False, add_help=False)
    for flag in flags:
        parser.add_argument(f"--{flag}", action="store_true")
    for option, action in valued.items():
        parser.add_argument(f"--{option.replace('_', '-')}", action=action)
    return parser


def container(name):
    for folder in (STATE / "containers").glob("*"):
        if name in {folder.name, json.loads((folder / "info").read_text())["name"]}:
            return folder, json.loads((folder / "info").read_text())
    fail(f"Error response from daemon: No such container: {name}")
    return None


def read_env(path):
    return dict(line.split("=", 1) for line in Path(path).read_text().splitlines()) if path else {}


def placed(folder, text):
    return PLACES.sub(lambda match: f"{folder}/root{match[0]}", text)


def main(name, *arguments):
    log = STATE / "log"
    with log.open("a") as file:
        file.write(json.dumps([name, *arguments]) + "\n")
    if (STATE / "fail").exists() and name in (STATE / "fail").read_text().split():
        fail(f"Error response from daemon: {name} failed on purpose")
    commands = {
        "ps": ps,
        "image": image,
        "build": build,
        "run": run,
        "exec": execute,
        "cp": copy,
        "inspect": inspect,
        "rm": remove,
        "restart": restart,
        "start": start,
    }
    if name not in commands:
        fail(f"unknown command: {name}", 125)
    commands[name](list(arguments))


def ps(arguments):
    parser = options("ps", "all", "quiet", filter="append")
    given = parser.parse_args(arguments)
    wanted = dict(item.removeprefix("label=").split("=", 1) for item in given.filter or ())
    for folder in sorted((STATE / "containers").glob("*")):
        info = json.loads((folder / "info").read_text())
        if all(info["labels"].get(key) == value for key, value in wanted.items()):
            say(folder.name)


def image(arguments):
    parser = options("image inspect", format="store")
    parser.add_argument("inspect", choices=["inspect"])
    parser.add_argument("name")
    given = parser.parse_args(arguments)
    if not (STATE / "images" / given.name.replace(":", "_")).exists():
        fail(f"Error response from daemon: No such image: {given.name}")
    say("sha256:1")


def build(arguments):
    parser = options("build", "quiet", tag="store")
    parser.add_argument("context")
    given = parser.parse_args(arguments)
    if "FAILS" in (Path(given.context) / "Dockerfile").read_text():
        fail("ERROR: failed to solve: process did not complete")
    shutil.copytree(given.context, STATE / "images" / given.tag.replace(":", "_"))
    say("sha256:1")


def run(arguments):
    parser = options("run", "detach", "init", name="store", label="append", network="store", cpus="store",
                     memory="store", memory_swap="store", env_file="store")  # fmt: skip
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    assert given.detach
    assert given.command == ["sh", "-c", "sleep infinity"]
    source = STATE / "images" / given.image.replace(":", "_")
    if not source.exists() and not given.image.startswith("public/"):
        fail(f"Unable to find image '{given.image}' locally", 125)
    folder = STATE / "containers" / given.name.removeprefix("agentrl-harbor-")
    for name in ("app", "tmp"):
        (folder / "root" / name).mkdir(parents=True)
    if source.exists():
        shutil.copytree(source, folder / "root" / "app", dirs_exist_ok=True)
        if (source / "test.sh").exists():  # an image with `COPY . /tests/`
            shutil.copytree(source, folder / "root" / "tests")
    info = {
        "name": given.name,
        "labels": dict(item.split("=", 1) for item in given.label),
        "env": read_env(given.env_file),
        "pid": first_process(),
        "given": vars(given),
    }
    (folder / "info").write_text(json.dumps(info))
    say(folder.name)


def first_process():
    return subprocess.Popen(["sleep", "1000000"], start_new_session=True, stdout=subprocess.DEVNULL).pid


def end(folder, info):
    """End the processes of a container, with the groups of its commands."""
    pids = (folder / "pids").read_text().split() if (folder / "pids").exists() else []
    for pid in (str(info["pid"]), *pids):
        try:
            os.killpg(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
    (folder / "pids").unlink(missing_ok=True)


def restart(arguments):
    parser = argparse.ArgumentParser(prog="restart", allow_abbrev=False, add_help=False)
    parser.add_argument("-t", choices=["0"], required=True)
    parser.add_argument("name")
    folder, info = container(parser.parse_args(arguments).name)
    end(folder, info)
    (folder / "info").write_text(json.dumps({**info, "pid": first_process()}))


def start(arguments):
    parser = options("start")
    parser.add_argument("name")
    folder, info = container(parser.parse_args(arguments).name)
    if not is_running(info):
        (folder / "info").write_text(json.dumps({**info, "pid": first_process()}))


def is_running(info):
    try:
        return Path(f"/proc/{info['pid']}/stat").read_text().split()[2] not in {"Z", "X"}
    except FileNotFoundError:
        return False


def execute(arguments):
    parser = options("exec", user="store", workdir="store", env_file="store")
    parser.add_argument("name")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    folder, info = container(given.name)
    if not is_running(info):
        fail(f"Error response from daemon: container {given.name} is not running")
    command = [placed(folder, word) for word in given.command]
    env = {"PATH": os.environ["PATH"], **info["env"], **read_env(given.env_file)}
    workdir = placed(folder, given.workdir or "/app") if (given.workdir or "/app") != "/" else f"{folder}/root"
    # runc starts a session for each process; killing this program does not end it.
    process = subprocess.Popen(command, env=env, cwd=workdir, start_new_session=True, stdin=subprocess.DEVNULL)
    with (folder / "pids").open("a") as file:
        file.write(f"{process.pid}\n")
    status = process.wait()
    raise SystemExit(128 - status if status < 0 else status)


def copy(arguments):
    parser = options("cp")
    parser.add_argument("source")
    parser.add_argument("target")
    given = parser.parse_args(arguments)
    if given.source == "-":
        name, path = given.target.split(":", 1)
        target = Path(placed(container(name)[0], path))
        if not target.is_dir():
            fail(f"Could not find the file {path} in container {name}")
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            archive.extractall(target, filter="tar")
        return
    assert given.target == "-"
    name, path = given.source.split(":", 1)
    source = Path(placed(container(name)[0], path))
    if not os.path.lexists(source):
        fail(f"Could not find the file {path} in container {name}")
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.add(source, arcname=source.name)


def inspect(arguments):
    parser = options("inspect", format="store")
    parser.add_argument("name")
    given = parser.parse_args(arguments)
    _, info = container(given.name)
    if given.format == "{{.State.Running}}":
        say(str(is_running(info)).lower())
    elif match := re.fullmatch(r'\{\{index \.Config\.Labels "([\w.]+)"\}\}', given.format):
        say(info["labels"].get(match[1], ""))
    else:
        fail(f"unknown template {given.format}", 64)


def remove(arguments):
    parser = options("rm", "force", "volumes")
    parser.add_argument("name")
    folder, info = container(parser.parse_args(arguments).name)
    if is_running(info):
        os.kill(info["pid"], signal.SIGKILL)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
