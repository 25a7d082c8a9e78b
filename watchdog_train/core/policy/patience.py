"""Settings of how long each kind of wait is given; from the last progress, in a quiet job."""

from typing import Annotated

from msgspec import Meta

from watchdog_train.core.policy.base import Section, non_negative, positive


class Patience(Section):
    """How long a quiet job is waited for, by what the one waits for that all others wait for."""

    proven_s: Annotated[
        float, positive("nothing can ever end the wait: a deadlock, seen twice")
    ] = 20.0
    proven_saving_s: Annotated[
        float,
        positive(
            "the same in a save or an evaluation, where a false alarm costs more; the lock file of "
            "a dead process, which lock libraries break in 30 s; a FIFO without another end"
        ),
    ] = 45.0
    proven_early_s: Annotated[
        float, positive("the same before the third step, where little is known of the job")
    ] = 60.0
    nobody_left_s: Annotated[
        float,
        positive(
            "all who could end the wait are idle, or all ranks are in one collective and no byte "
            "moves: a hand-over takes milliseconds, but nothing proves that it is lost"
        ),
    ] = 60.0
    unknown_s: Annotated[
        float, positive("what it waits for is not known; quiet moments of 60 s exist")
    ] = 75.0
    unknown_early_s: Annotated[
        float,
        positive(
            "the same before the third step: a first step of a minute may leave no trace but time"
        ),
    ] = 150.0
    cost_most_s: Annotated[
        float,
        positive(
            "an unknown wait that may end gets what a false alarm would cost, at most this long"
        ),
    ] = 900.0
    network_s: Annotated[
        float,
        positive(
            "another machine is to answer, thrice this in an evaluation: clients give up "
            "after 5 to 10 minutes, and a judge may take long"
        ),
    ] = 600.0
    poll_s: Annotated[
        float,
        positive(
            "it asks again and again, sleeps again at the same line, or listens: somebody may "
            "come; or a living process of this machine outside of the job is to act or let go"
        ),
    ] = 900.0
    longest_sleep_s: Annotated[
        float, positive("one sleep is waited out, unless its end is further away than this")
    ] = 1800.0
    live_lock_s: Annotated[
        float | None,
        Meta(
            description="over the hard limit, busy with nothing but asking if something has "
            "happened, in 20 samples: this long from the first; null: said, and never a stall"
        ),
    ] = None
    again_s: Annotated[
        float,
        non_negative(
            "a restart that falls silent at the same place gets this long: maybe it only pauses"
        ),
    ] = 900.0
    again_later_s: Annotated[
        float, non_negative("from the third time on, if the wait can end by itself")
    ] = 3600.0
    again_most_s: Annotated[
        float, non_negative("so much longer patience at most for one place in one run")
    ] = 5400.0
