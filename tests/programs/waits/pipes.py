"""Waits for pipes, unix sockets and TCP."""

# ruff: noqa: SIM115
from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
import time

from say import SLEEPS, asleep, cannot, child, main, program, waits


@program()
def pipe_whose_writer_sleeps():
    reads, writes = os.pipe()
    writer = asleep(reads)
    os.close(writes)
    waits("pipe", call="read", others=[writer])
    os.read(reads, 1)  # here


@program()
def pipe_that_is_full():
    reads, writes = os.pipe()
    reader = asleep(writes)
    os.close(reads)
    waits("pipe", call="write", others=[reader])
    os.write(writes, bytes(1 << 20))  # here


@program()
def pipe_with_an_inherited_copy():
    """Who was forked later has the writing end as well, and never heard of it."""
    reads, writes = os.pipe()
    writer = asleep(reads)
    bystander = asleep()
    os.close(writes)
    waits("pipe", call="read", others=[writer, bystander])
    os.read(reads, 1)  # here


@program()
def pipe_whose_both_ends_are_its_own():
    reads, _ = os.pipe()
    waits("pipe", call="read", others=[os.getpid()])
    os.read(reads, 1)  # here


@program()
def socket_pair_whose_other_end_sleeps():
    ours, theirs = socket.socketpair()
    other = asleep(ours.fileno())
    theirs.close()
    waits("pipe", call="read", others=[other])
    ours.recv(1)  # here


@program(2)
def unix_client_of_a_server_that_sleeps():
    """And the server's own child, which listens: nobody has let it down."""
    server = socket.socket(socket.AF_UNIX)
    server.bind("service")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect("service")
    accepted, _ = server.accept()

    def listen():
        accepted.close()
        client.close()
        waits("pipe", call="read", listens=True, path="service")
        server.accept()  # here

    child(listen)
    holder = asleep(client.fileno(), server.fileno())
    accepted.close()
    server.close()
    waits("pipe", call="read", path="service", others=[holder])
    client.recv(1)  # here


@program()
def two_pipes_of_a_program():
    """Popen.communicate() with both streams."""
    code = "import time; time.sleep(600)"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe)
    end = {"wait": "pipe", "call": "read", "others": [process.pid]}
    waits("poll", waits=[end, end])
    process.communicate()


def poll(make):
    """A wait for any of two pipes, by one of three system calls."""
    (a, _), (b, _) = os.pipe(), os.pipe()
    end = {"wait": "pipe", "call": "read", "others": [os.getpid()]}
    waits("poll", waits=[end, end], left_s=400, timed=True)
    make(a, b)  # here


@program()
def two_pipes_in_poll():
    def wait(a, b):
        poller = select.poll()
        poller.register(a, select.POLLIN)
        poller.register(b, select.POLLIN)
        poller.poll(400_000)

    poll(wait)


@program()
def two_pipes_in_epoll():
    def wait(a, b):
        poller = select.epoll()
        poller.register(a, select.EPOLLIN)
        poller.register(b, select.EPOLLIN)
        poller.poll(400)

    poll(wait)


@program()
def two_pipes_in_select():
    poll(lambda a, b: select.select([a, b], [], [], 400))


def connected():
    """A client, and the server's end of its connection."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    server.close()
    host, port = accepted.getsockname()
    return client, accepted, f"{host}:{port}"


@program(lines=True)
def tcp_peer_that_sleeps():
    client, accepted, address = connected()
    other = asleep(client.fileno())
    accepted.close()
    waits("tcp", call="read", address=address, others=[other], on_this_host=True, moved_bytes=0)
    client.recv(1)  # here


@program()
def tcp_peer_that_does_not_read():
    client, accepted, address = connected()
    other = asleep(client.fileno())
    accepted.close()
    waits("tcp", call="write", address=address, others=[other], on_this_host=True, moved_bytes=0)
    client.sendall(bytes(1 << 26))  # here


@program(2)
def tcp_peer_that_answers_in_time():
    """Nothing hangs: a byte comes every hundredth of a second."""
    client, accepted, address = connected()

    def answer():
        client.close()
        waits("sleep", left_s=1, repeats=True, **SLEEPS)
        while accepted.send(b"."):
            time.sleep(0.01)  # here

    other = child(answer)
    accepted.close()
    waits("tcp", call="read", address=address, others=[other], on_this_host=True, moved_bytes=1)
    while client.recv(1):  # here
        pass


@program()
def tcp_server_without_clients():
    server = socket.create_server(("127.0.0.1", 0))
    waits("tcp", call="accept", address=f"127.0.0.1:{server.getsockname()[1]}")
    server.accept()  # here


@program()
def tcp_server_that_accepts_nobody_more():
    """Its queue is full: the kernel drops whoever knocks."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    host, port = server.getsockname()
    for _ in range(4):
        early = socket.socket()
        early.setblocking(False)
        early.connect_ex((host, port))
        early.detach()
    late = socket.socket()
    there = {"address": f"{host}:{port}", "others": [os.getpid()], "on_this_host": True}
    waits("tcp", call="connect", moved_bytes=0, **there)
    late.connect((host, port))  # here


@program()
def tcp_address_that_never_answers():
    """Of the range that is kept for documentation."""
    probe = socket.socket()
    probe.setblocking(False)
    refused = probe.connect_ex(("192.0.2.1", 9)) != errno.EINPROGRESS
    if refused or select.select([], [probe], [], 0.5)[1]:
        cannot("no route leads there")
    waits("tcp", call="connect", address="192.0.2.1:9", on_this_host=False, moved_bytes=0)
    socket.socket().connect(("192.0.2.1", 9))  # here


@program(2)
def idle_server_beside_a_hung_rank():
    """Only the rank is to blame: the server waits for anybody."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        waits("tcp", call="accept", address=f"127.0.0.1:{server.getsockname()[1]}")
        select.select([server], [], [])  # here

    child(serve)
    server.close()
    os.mkfifo("ckpt.pt")
    waits("file", call="open", end="write", kind="fifo", path=os.path.abspath("ckpt.pt"))
    open("ckpt.pt", "wb")  # here


@program()
def datagram_that_does_not_come():
    """Nobody can tell from whom."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    waits("unknown", why="call", call="socket")
    receiver.recv(1)  # here


if __name__ == "__main__":
    main()
