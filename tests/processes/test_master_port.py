"""MASTER_PORT between two attempts: kept while it is free, replaced when somebody has taken it."""

from __future__ import annotations

import socket

import pytest

from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.supervisor import master_port
from watchdog_train.supervisor.master_port import MasterPort

TASK = JobTask(job="slurm:1.0", source="slurm", task=0, tasks=2, here=2)
FAR = JobTask(job="slurm:1.0", source="slurm", task=0, tasks=4, here=2)


def environment(port: object, address: str = "127.0.0.1") -> dict[str, str]:
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def test_a_port_that_is_free_or_closing_is_kept() -> None:
    """Connections in TIME_WAIT are no reason: torch's store is not hindered by them, either."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()
    assert MasterPort(environment(port), TASK).replacement() is None


def test_a_port_that_is_only_looked_at_cannot_be_reached() -> None:
    """Whoever tries in that moment is refused."""
    with master_port._bind(0) as looked_at, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", looked_at.getsockname()[1]), 5)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_that_is_taken_is_replaced(family: socket.AddressFamily) -> None:
    """The other one stays the same while it is free, and is given up when the first one is."""
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        looked = MasterPort(environment(port), TASK)
        other = looked.replacement()
        assert other not in (None, port)
        assert looked.replacement() == other
        assert MasterPort(environment(port), None).replacement() not in (None, port)
    assert looked.replacement() is None


@pytest.mark.parametrize(
    ("variables", "task"),
    [
        ({}, TASK),
        ({"MASTER_PORT": "PORT"}, TASK),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "many"}, TASK),
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "PORT"}, FAR),
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "PORT"}, None),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "PORT", "WORLD_SIZE": "2"}, None),
    ],
)
def test_a_port_that_others_must_agree_on_is_left(
    variables: dict[str, str], task: JobTask | None
) -> None:
    """Other machines, or ranks that we do not start, would go on meeting at the old one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        said = {name: text.replace("PORT", port) for name, text in variables.items()}
        assert MasterPort(said, task).replacement() is None
