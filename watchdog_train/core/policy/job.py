"""Settings of a run that is one task or node of several."""

from typing import Annotated

from msgspec import Meta

from watchdog_train.core.policy.base import Section, positive


class Job(Section):
    """A job of several tasks or nodes, each under its own wtrain (srun, mpirun, torchrun)."""

    nodes: Annotated[
        str | None,
        Meta(
            description="supervise one node of this many, or as `slurm` or the environment "
            "(`auto`) tells; `auto` also leads several tasks of one machine; null: no nodes"
        ),
    ] = None
    node_rank: Annotated[
        int | None,
        Meta(description="which of the nodes this is, from 0; null: as the environment tells"),
    ] = None
    coordination: Annotated[
        str | None,
        Meta(
            description="address where the first task listens for those of other machines, "
            "tcp://HOST:PORT; null: all tasks are on one machine"
        ),
    ] = None
    gather_s: Annotated[
        float, positive("for all nodes to come before the first attempt; pods may start late")
    ] = 900.0
    lost_s: Annotated[
        float,
        positive(
            "a machine that is silent for so long is lost, once no rank that is heard makes steps; "
            "long, for until then they may work"
        ),
    ] = 900.0
