"""Clients on a raw socket that are slow, greedy, broken or hostile: each is refused or ended, and nobody else."""

import asyncio
import json
import socket
import threading
import time
from contextlib import ExitStack, closing

import pytest

from agentrl_core.gateway.serving.limits import Limits
from agentrl_core.gateway.serving.server import GatewayServer
from agentrl_core.gateway.serving.web import EVENTS, MAX_BODY_BYTES, HttpResponse, json_response

SHORT = 0.05


class Routes:
    """`/held` is answered when `release` is set, `/endless` streams for ever, `/private` is refused by its headers."""

    def __init__(self):
        self.begun = threading.Event()
        self.ended = threading.Event()
        self.release = threading.Event()
        self.requests = []
        self.streamed = 0

    async def handle(self, request):
        self.requests.append(request)
        try:
            if request.path == "/held":
                self.begun.set()
                while not self.release.is_set():
                    await asyncio.sleep(0.005)
            if request.path in {"/endless", "/events"}:
                return HttpResponse(headers=EVENTS, body=self.stream(endless=request.path == "/endless"))
            return json_response({"path": request.path, "bytes": len(request.body)})
        except asyncio.CancelledError:
            self.ended.set()
            raise

    async def stream(self, *, endless):
        try:
            self.begun.set()
            for _ in range(10**6 if endless else 3):
                self.streamed += 1
                yield b"data: " + b"x" * (10_000 if endless else 1) + b"\n\n"
        finally:
            self.ended.set()

    def refuse_early(self, request):
        return json_response({"error": "private"}, status=401) if request.path == "/private" else None


@pytest.fixture
def routes():
    return Routes()


@pytest.fixture
def serve(routes):
    with ExitStack() as stack:

        def start(**limits):
            server = GatewayServer(
                routes.handle, routes.refuse_early, host="127.0.0.1", port=0, limits=Limits(**limits)
            )
            server.start()
            stack.callback(server.close)
            host, port = server.url.removeprefix("http://").split(":")

            def connect():
                connection = socket.create_connection((host, int(port)), timeout=20)
                return stack.enter_context(closing(connection))

            return connect

        yield start


def head(path="/", *headers, method="POST", version="HTTP/1.1"):
    return "\r\n".join([f"{method} {path} {version}", "host: gateway", *headers, "", ""]).encode()


def read_to_end(connection):
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def read_response(connection):
    """Read one response with a content-length; its status and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    start, _, body = data.partition(b"\r\n\r\n")
    length = int(start.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return int(start.split()[1]), json.loads(body)


def send_for_ever(connection):
    while True:
        connection.sendall(b"x" * 1000)


def is_dropped(connection):
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def ask(connection, path="/"):
    connection.sendall(head(path, "content-length: 0"))
    return read_response(connection)


def refusal(data):
    """Return the status, the code and whether the connection is said to close of a last response."""
    start, _, body = data.partition(b"\r\n\r\n")
    said = json.loads(body)
    assert said["type"] == "error"  # Anthropic's clients look for it
    return int(start.split()[1]), said["error"]["code"], b"\r\nconnection: close" in start


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HT",
        head("/", "content-length: 10"),
        head("/", "content-length: 10") + b"12345",
        head("/", "transfer-encoding: chunked") + b"3\r\nabc\r\n",
    ],
)
def test_a_request_that_does_not_arrive_in_time_is_refused(serve, sent):
    connection = serve(request_s=SHORT)()
    connection.sendall(sent)
    assert refusal(read_to_end(connection)) == (408, "request_timeout", True)


def test_a_byte_now_and_then_buys_no_time(serve):
    connection = serve(request_s=0.3)()
    connection.settimeout(0.02)
    sent, answer = iter(head("/", "x: " + "a" * 10_000)), b""
    while not answer:
        connection.sendall(bytes([next(sent)]))
        try:
            answer = connection.recv(1000)
        except TimeoutError:
            continue
    assert b" 408 " in answer


@pytest.mark.parametrize("requests", [0, 1])
def test_an_idle_connection_is_closed(serve, requests):
    connection = serve(request_s=SHORT, idle_s=SHORT)()
    for _ in range(requests):
        assert ask(connection)[0] == 200
    assert connection.recv(100) == b""


def test_waiting_for_an_answer_is_not_idle(serve, routes):
    connect = serve(request_s=SHORT, idle_s=SHORT)
    waiting, idle = connect(), connect()
    waiting.sendall(head("/held", "content-length: 0"))
    assert ask(idle)[0] == 200
    assert idle.recv(100) == b""  # by now the other has waited for as long
    routes.release.set()
    assert read_response(waiting)[0] == 200


def test_a_head_that_is_too_large_is_refused_whether_it_comes_at_once_or_never_ends(serve):
    connect = serve(head_bytes=2000)
    at_once, endless = connect(), connect()
    at_once.sendall(head("/", "a: " + "x" * 3000))
    assert refusal(read_to_end(at_once)) == (431, "headers_too_large", True)
    endless.sendall(head("/")[:-2] + b"a: " + b"x" * 3000)
    assert refusal(read_to_end(endless)) == (431, "headers_too_large", True)


def test_too_many_headers_are_refused(serve):
    connect = serve()
    few, many = connect(), connect()
    few.sendall(head("/", *[f"a{number}: b" for number in range(120)], "content-length: 0"))
    assert read_response(few)[0] == 200
    many.sendall(head("/", *[f"a{number}: b" for number in range(200)]))
    assert refusal(read_to_end(many)) == (431, "headers_too_large", True)


def test_a_url_that_is_too_long_is_refused(serve):
    connection = serve()()
    connection.sendall(head("/" + "v1/" * 3000))
    assert refusal(read_to_end(connection)) == (414, "url_too_long", True)


def test_a_body_that_is_announced_as_too_large_is_not_read(serve, routes):
    connection = serve()()
    connection.sendall(head("/", f"content-length: {MAX_BODY_BYTES + 1}", "expect: 100-continue"))
    answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert routes.requests == []


def test_a_body_in_chunks_that_is_too_large_is_refused(serve, routes):
    connection = serve()()
    connection.sendall(head("/", "transfer-encoding: chunked"))
    chunk = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    for _ in range(17):
        connection.sendall(chunk)
    assert read_to_end(connection).startswith(b"HTTP/1.1 413 ")
    assert routes.requests == []


def test_an_endless_trailer_is_refused(serve, routes):
    connection = serve(wire_bytes=500_000)()
    connection.sendall(head("/", "transfer-encoding: chunked") + b"0\r\ntrailer: ")
    connection.sendall(b"x" * 700_000)
    assert refusal(read_to_end(connection)) == (413, "request_too_large", True)
    assert routes.requests == []


def test_trailers_are_no_headers(serve, routes):
    connection = serve()()
    connection.sendall(head("/", "authorization: Bearer mine", "transfer-encoding: chunked"))
    connection.sendall(b"3\r\nabc\r\n0\r\nauthorization: Bearer other\r\nx: y\r\n\r\n")
    assert read_response(connection) == (200, {"path": "/", "bytes": 3})
    assert routes.requests[0].headers["authorization"] == "Bearer mine"
    assert "x" not in routes.requests[0].headers


def test_who_is_refused_while_sending_reads_why(serve):
    connection = serve()()
    connection.sendall(head("/private", "content-length: 3000000"))
    connection.sendall(b"x" * 3_000_000)
    assert read_to_end(connection).startswith(b"HTTP/1.1 401 ")


def test_who_was_refused_and_stays_is_cut_off(serve):
    connection = serve(linger_s=SHORT)()
    connection.sendall(head("/private", "content-length: 3000000"))
    assert read_to_end(connection).startswith(b"HTTP/1.1 401 ")
    with pytest.raises(OSError):
        send_for_ever(connection)


def test_a_client_that_shuts_down_its_side_gets_its_reply(serve, routes):
    connection = serve()()
    connection.sendall(head("/held", "content-length: 0"))
    connection.shutdown(socket.SHUT_WR)
    assert routes.begun.wait(10)
    assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"  # the server asks whether it still reads
    routes.release.set()
    answer = read_to_end(connection)
    assert b"HTTP/1.1 200 OK\r\n" in answer
    assert answer.endswith(b'{"path":"/held","bytes":0}')


def test_a_client_that_closes_ends_its_answer(serve, routes):
    connection = serve()()
    connection.sendall(head("/held", "content-length: 0"))
    assert routes.begun.wait(10)
    connection.close()
    assert routes.ended.wait(10)


def test_half_a_request_and_an_end_is_no_request(serve, routes):
    connection = serve()()
    connection.sendall(head("/", "content-length: 10") + b"12345")
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(100) == b""
    assert routes.requests == []


def test_a_stream_that_nobody_reads_stops_and_ends(serve, routes):
    connection = serve(unread_s=0.2)()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(head("/endless", "content-length: 0"))
    assert routes.ended.wait(20)
    assert routes.streamed < 10_000  # of a million: it was not all buffered


def test_beyond_the_limit_newcomers_are_told_so_and_calls_go_on(serve, routes):
    connect = serve(connections=2, surplus=1)
    held = [connect(), connect()]
    for connection in held:
        connection.sendall(head("/held", "content-length: 0"))
    while len(routes.requests) < 2:
        assert routes.begun.wait(10)
    third, fourth = connect(), connect()
    assert refusal(read_to_end(third)) == (503, "too_many_connections", True)
    assert is_dropped(fourth)
    routes.release.set()
    assert [read_response(connection)[0] for connection in held] == [200, 200]


def test_a_newcomer_takes_the_place_of_the_connection_that_is_idle_longest(serve):
    connect = serve(connections=2)
    first, second = connect(), connect()
    assert ask(second)[0] == 200
    answered = time.monotonic()
    while time.monotonic() < answered + 0.01:  # the server's clock counts milliseconds
        assert ask(first)[0] == 200
    assert ask(connect())[0] == 200
    assert second.recv(100) == b""
    assert ask(first)[0] == 200


@pytest.mark.parametrize("sent", [b"POST / HT", head("/", "content-length: 10") + b"12345"])
def test_half_sent_requests_keep_no_newcomer_out(serve, sent):
    connect = serve(connections=3, surplus=0)
    half_sent = [connect() for _ in range(3)]
    for connection in half_sent:
        assert ask(connection)[0] == 200
        connection.sendall(sent)
    newcomers = [connect() for _ in range(3)]
    assert [ask(connection)[0] for connection in newcomers] == [200, 200, 200]
    for connection in half_sent:
        assert refusal(read_to_end(connection)) == (408, "request_timeout", True)


def test_a_body_that_arrived_is_not_awaited_while_it_is_answered(serve, routes):
    connect = serve(connections=1, surplus=1)
    held = connect()
    held.sendall(head("/held", "content-length: 3") + b"abc")
    assert routes.begun.wait(10)
    assert refusal(read_to_end(connect())) == (503, "too_many_connections", True)
    routes.release.set()
    assert read_response(held) == (200, {"path": "/held", "bytes": 3})
    assert ask(connect())[0] == 200
    assert is_dropped(held)


def test_pipelined_requests_are_answered_in_order(serve):
    connection = serve()()
    connection.sendall(b"".join(head(f"/{number}", "content-length: 1") + b"x" for number in range(5)))
    answers = b""
    while answers.count(b'"bytes":1}') < 5:
        answers += connection.recv(65536)
    places = [answers.index(b'"/%d"' % number) for number in range(5)]
    assert places == sorted(places)


def test_too_many_pipelined_requests_are_refused_and_none_is_kept(serve, routes):
    connection = serve()()
    connection.sendall(head("/held", "content-length: 0") + head("/", "content-length: 0") * 1000)
    assert refusal(read_to_end(connection)) == (400, "too_many_requests", True)


def test_a_pipelined_request_does_not_time_out_while_it_waits_for_its_turn(serve, routes):
    connect = serve(request_s=SHORT, idle_s=SHORT)
    connection, idle = connect(), connect()
    connection.sendall(head("/held", "content-length: 0") + head("/next", "content-length: 3") + b"ab")
    assert routes.begun.wait(10)
    assert idle.recv(100) == b""  # the time is over
    routes.release.set()
    assert read_response(connection)[0] == 200
    connection.sendall(b"c")
    assert read_response(connection) == (200, {"path": "/next", "bytes": 3})


def test_expect_continue_is_answered_before_the_body_is_sent(serve):
    connection = serve()()
    connection.sendall(head("/", "content-length: 3", "expect: 100-continue"))
    assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(b"abc")
    assert read_response(connection) == (200, {"path": "/", "bytes": 3})


def test_a_body_in_chunks_needs_no_length(serve):
    connection = serve()()
    connection.sendall(head("/", "transfer-encoding: chunked"))
    for piece in (b"1\r\na\r\n", b"2;extension=1\r\nbc\r\n", b"0\r\n", b"\r\n"):
        connection.sendall(piece)
    assert read_response(connection) == (200, {"path": "/", "bytes": 3})


def test_http_1_0_is_answered_without_chunks(serve):
    connect = serve()
    plain, stream = b'{"path":"/","bytes":0}', b"data: x\n\n" * 3
    for sent, expected in (
        (head("/", version="HTTP/1.0"), plain),
        (head("/events", version="HTTP/1.0"), stream),
        (b"GET /events\r\n\r\n", stream),  # before 1.0
    ):
        connection = connect()
        connection.sendall(sent)
        start, _, body = read_to_end(connection).partition(b"\r\n\r\n")
        assert start.startswith(b"HTTP/1.1 200 ")
        assert b"transfer-encoding" not in start
        assert body == expected


@pytest.mark.parametrize(
    "sent",
    [
        head("/", "content-length: 3", "content-length: 4") + b"abcd",
        head("/", "content-length: 3, 4") + b"abcd",
        head("/", "content-length: -1"),
        head("/", "content-length: 3x") + b"abc",
        head("/", "content-length: 99999999999999999999999"),
        head("/", "content-length: 3", "transfer-encoding: chunked") + b"0\r\n\r\n",
        head("/", "transfer-encoding: chunked", "content-length: 3") + b"0\r\n\r\n",
        head("/", "transfer-encoding: chunked, identity") + b"0\r\n\r\n",
        head("/", "transfer-encoding: xchunked") + b"0\r\n\r\n",
        head("/", "transfer-encoding : chunked") + b"0\r\n\r\n",
        head("/", "transfer-encoding: chunked") + b"xyz\r\n",
        head("/", "transfer-encoding: chunked") + b"-1\r\n",
        head("/", "transfer-encoding: chunked") + b"fffffffffffffffff\r\n",
        head("/", "a: b\r\n folded: c"),
        head("/", "a: nul\0"),
        head("/", "na\0me: b"),
        head("/", ": no name"),
        head("/nul\0", "a: b"),
        head("/blank inside", "a: b"),
        head("no-slash", "a: b"),
        head("/", method="GE T"),
        head("/", method="BREW"),
        head("gateway:80", method="CONNECT"),
        head("/", version="HTTP/3.7"),
        head("/", version="HTTX/1.1"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 50,  # TLS
        b"\0" * 100,
        "POST /\u00e4 HTTP/1.1\r\nhost: x\r\n\r\n".encode("latin-1"),
    ],
)
def test_what_is_not_http_is_refused(serve, routes, sent, caplog):
    connection = serve()()
    connection.sendall(sent)
    assert refusal(read_to_end(connection)) == (400, "invalid_http", True)
    assert routes.requests == []
    assert not caplog.records  # strangers must not fill the log


@pytest.mark.parametrize(
    ("hosts", "version", "refused"),
    [
        (0, "HTTP/1.1", True),
        (1, "HTTP/1.1", False),
        (2, "HTTP/1.1", True),
        (0, "HTTP/1.0", False),
        (2, "HTTP/1.0", True),
    ],
)
def test_a_request_names_one_host(serve, routes, hosts, version, refused):
    connection = serve()()
    lines = [f"GET / {version}", *["host: gateway"] * hosts, "connection: close", "", ""]
    connection.sendall("\r\n".join(lines).encode())
    answer = read_to_end(connection)
    assert answer.split()[1] == (b"400" if refused else b"200")
    assert len(routes.requests) == (0 if refused else 1)


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0, HTTP/1.1"])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(
    ("length", "body"),
    [("content-length: 5", b"hello"), ("transfer-encoding: chunked", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n")],
)
def test_who_would_rather_speak_another_protocol_is_answered_in_this_one(serve, routes, protocol, pieces, length, body):
    connection = serve()()
    upgrade = ("connection: Upgrade, HTTP2-Settings", f"upgrade: {protocol}", "http2-settings: AAEAAEAAAAIAAAAB")
    sent = head("/", *upgrade, length) + body
    for number in range(2):  # on one connection, which stays open
        for start in range(0, len(sent), step := -(-len(sent) // pieces)):
            connection.sendall(sent[start : start + step])
        assert read_response(connection) == (200, {"path": "/", "bytes": 5})
        assert routes.requests[number].body == b"hello"
        assert "upgrade" not in routes.requests[number].headers
    assert ask(connection)[0] == 200


def test_many_upgrades_in_a_row_are_too_many_requests_like_any_others(serve, routes):
    connection = serve()()
    connection.sendall(head("/held", "connection: upgrade", "upgrade: h2c", "content-length: 0") * 2000)
    assert refusal(read_to_end(connection)) == (400, "too_many_requests", True)


@pytest.mark.parametrize("path", ["/", "/private"])
def test_a_client_that_awaits_a_word_and_sends_rubbish_leaves_no_traceback(serve, routes, path, caplog):
    connection = serve()()
    connection.sendall(head(path, "expect: 100-continue", "transfer-encoding: chunked") + b"zz\r\n")
    assert read_to_end(connection)[9:12] in {b"400", b"401"}
    connection.close()
    assert ask(serve()())[0] == 200
    assert routes.requests[0].body == b""
    assert not caplog.records


@pytest.mark.parametrize("path", ["/%00", "/%ff%fe", "/%ed%a0%80", "/%0a%0d", "/" + "%2f" * 100, "/%", "/%zz", "/?%00"])
def test_odd_paths_reach_the_routes_as_text(serve, routes, path):
    assert ask(serve()(), path)[0] == 200
    routes.requests[0].path.encode()


def test_headers_may_hold_any_bytes_that_http_allows(serve, routes):
    connection = serve()()
    connection.sendall(head("/", "content-length: 0")[:-2] + b"a: \xff\xfe\x80\t'\"\\\r\nempty:\r\n\r\n")
    assert read_response(connection)[0] == 200
    assert routes.requests[0].headers["a"] == "\xff\xfe\x80\t'\"\\"


def test_a_body_longer_than_its_length_ends_the_connection(serve):
    connection = serve()()
    connection.sendall(head("/", "content-length: 2") + b'{}{"more": 1}')
    assert b" 400 " in read_to_end(connection)


def test_another_protocol_is_not_spoken(serve):
    connection = serve()()
    connection.sendall(head("/", "connection: upgrade", "upgrade: websocket", "content-length: 0") + b"\x81\x05hello")
    assert refusal(read_to_end(connection)) == (400, "invalid_http", True)
