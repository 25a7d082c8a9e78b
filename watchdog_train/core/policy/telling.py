"""Settings of what a person sees and is told; the texts are those of docs/config.md."""

from typing import Annotated

from msgspec import Meta

from watchdog_train.core.policy.base import Section, non_negative, positive


class Output(Section):
    """Where the training's output goes."""

    log_cap_bytes: Annotated[
        int, Meta(ge=65536, description="of each captured stream; the newest are kept")
    ] = 64 * 1024 * 1024
    progress_every_s: Annotated[
        float,
        positive("time between progress events in the log; after hours they are up to 4 min apart"),
    ] = 30.0
    status_line: Annotated[
        bool,
        Meta(
            description="one line of progress at the bottom of a terminal, while training is silent"
        ),
    ] = True
    progress_line_s: Annotated[
        float | None,
        Meta(description="time between plain lines of progress without a terminal; null: none"),
    ] = 300.0
    heartbeat_every: Annotated[
        int,
        Meta(ge=0, description="every rank writes a line on stderr after so many steps; 0: none"),
    ] = 0
    quiet: Annotated[
        bool, Meta(description="say nothing as long as all goes well: no opening, no progress")
    ] = False
    termination_log: Annotated[
        str | None,
        Meta(
            description="the verdict in a few words goes into this file, where a kubelet looks for "
            "it; auto: /dev/termination-log in a container of Kubernetes; null: nowhere"
        ),
    ] = "auto"


class Notify(Section):
    """Who is told what happens while nobody looks."""

    urls: Annotated[
        tuple[str, ...],
        Meta(
            description="where to tell of stalls, restarts and the end: an http(s) URL gets JSON, "
            "others are those of apprise; a URL can be a secret, so rather WTRAIN_NOTIFY"
        ),
    ] = ()
    every_s: Annotated[
        float,
        non_negative("between two messages; what happens meanwhile comes in one, the end at once"),
    ] = 60.0
    commands: Annotated[
        tuple[str, ...],
        Meta(
            description="EVENT=COMMAND: run COMMAND in a shell when EVENT happens, with the event "
            "as JSON on its stdin; before_restart is waited for, other names are those of "
            "docs/events.md"
        ),
    ] = ()
    command_s: Annotated[
        float,
        positive("for each such command and all it starts; then they are ended"),
    ] = 30.0


class Metrics(Section):
    """Numbers for Prometheus."""

    file: Annotated[
        str | None,
        Meta(
            description="numbers for Prometheus go into this file, replaced as a whole, for the "
            "textfile collector of node_exporter, which wants a name in .prom; null: none"
        ),
    ] = None
    every_s: Annotated[float, positive("between two times that they are taken")] = 15.0
