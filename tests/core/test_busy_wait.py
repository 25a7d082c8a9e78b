"""Which loops only ask if something has happened, by their source alone."""

from __future__ import annotations

import ast
import textwrap

import pytest

from watchdog_train.evidence.busy_wait import waiting_loop

ASKS = (
    "while not ready:\n    pass",
    "while not self.event.is_set():\n    time.sleep(0)",
    "while not os.path.exists(path) or lock.locked():\n    continue",
    "while True:\n    if len(found) == 3:\n        break",
    "while True:\n    try:\n        item = get_nowait()\n    except queue.Empty:\n        pass",
)
WORKS = (
    "while True:\n    x = x @ w",
    "while not ready:\n    tries += 1",
    "while i < n:\n    total += data[i]",
    "while loss > 0.1:\n    loss = step()",
    "while not request.Test():\n    pass",
    "while not solver.converged(model):\n    pass",
    "while time.monotonic() < until:\n    pass",
    "while time.time() - start < 60:\n    pass",
    "while any(p.is_alive() for p in children):\n    pass",
    "while not ready:\n    for batch in loader:\n        pass",
    "for batch in batches:\n    pass",
    "async def f():\n    while not done:\n        await nothing",
    "while not ready:\n    def inner():\n        return 1",
)


@pytest.mark.parametrize("loop", [*ASKS, *WORKS])
@pytest.mark.parametrize("outer", ["for epoch in range(9):", "while epoch < 9:", "if epoch:"])
def test_a_loop_only_asks_if_no_part_of_it_could_compute(loop: str, outer: str) -> None:
    source = f"def fit():\n    {outer}\n" + textwrap.indent(loop, " " * 8)
    tree = ast.parse(source)
    lines = range(3, source.count("\n") + 2)
    found = {waiting_loop(tree, "fit", line) for line in lines}
    assert found == ({3} if loop in ASKS else {None})
    assert waiting_loop(tree, "another", 3) is None, "the file was changed since it was started"
