"""How the options of launchers are written. Pure data.

As torchrun 2.13 and accelerate 1.15 tell them apart (torch/distributed/run.py,
accelerate/commands/launch.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Family = Literal["torchrun", "accelerate"]


class Options:
    """How a launcher's options are written."""

    def __init__(
        self, *, flags: str, values: str, shorts: Mapping[str, str], abbreviated: bool
    ) -> None:
        self.flags = frozenset(flags.split())
        self.shorts = shorts
        self.names = self.flags | frozenset(values.split())
        self.abbreviated = abbreviated

    def full(self, name: str) -> str:
        """The whole name of an option; itself where it is none that is known."""
        name = name.replace("_", "-")
        if name in self.names or not self.abbreviated:
            return name
        longer = [known for known in self.names if known.startswith(name)]
        return longer[0] if len(longer) == 1 else name


OPTIONS: dict[Family, Options] = {
    "torchrun": Options(
        flags="standalone module no-python run-path virtual-local-rank use-env help",
        values="nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts "
        "monitor-interval start-method event-log-handler role log-dir redirects tee "
        "local-ranks-filter duplicate-stdout-filters duplicate-stderr-filters node-rank "
        "master-addr master-port local-addr logs-specs numa-binding signals-to-handle "
        "shutdown-timeout",
        shorts={"m": "module", "r": "redirects", "t": "tee", "h": "help"},
        abbreviated=True,
    ),
    "accelerate": Options(
        flags="help quiet cpu multi-gpu tpu enable-cpu-affinity dynamo-use-fullgraph "
        "dynamo-use-dynamic dynamo-use-regional-compilation use-deepspeed use-fsdp "
        "use-parallelism-config use-megatron-lm same-network module no-python tpu-cluster "
        "no-tpu-cluster tpu-use-sudo downcast-bf16 fp8-use-autocast-during-eval debug",
        values="",
        shorts={"h": "help", "q": "quiet", "t": "tee", "m": "module"},
        abbreviated=False,
    ),
}
