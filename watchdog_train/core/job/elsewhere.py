"""Whether the rest of a world is quiet: what one tree alone cannot tell. Pure."""

from __future__ import annotations

from watchdog_train.core.fold.state import State
from watchdog_train.core.job.peers import JobView, PeerView, Signs


def elsewhere_quiet(
    state: State,
    signs: Signs,
    view: JobView | None,
    *,
    silent_s: float,
    lost_s: float,
    part_of_more: bool,
    all_heard: bool = True,
) -> bool:
    """Whether no rank of the world works outside our tree. A peer that tells nothing is unknown.

    Args:
        state: of this task.
        signs: of its tree.
        view: the peers; None in a run that is no task of a job.
        silent_s: a peer whose record is older than this tells nothing.
        lost_s: a peer on another machine that is silent for so long is lost, with its ranks.
        part_of_more: see core.starting.jobs.is_part_of_more().
        all_heard: every agent is.
    """
    job, launcher = state.job, state.launcher
    if state.crew is not None:
        return all_heard
    if job is None or view is None or not job.together:
        nodes = launcher.nodes if launcher is not None else 1
        return signs.whole is not False or (nodes == 1 and not part_of_more)
    if job.task.met < job.task.tasks:
        return False
    # Nodes have all been heard before anything was launched: whoever took up one of them and hears
    # nothing of another may wait for a word that was lost with a store, or that never comes again.
    lost = job.task.kind == "node" and view.listened_s >= lost_s
    if len(view.peers) < job.task.met - 1 and not lost:
        return False
    return all(_is_quiet(peer, silent_s, lost_s) for peer in view.peers)


def _is_quiet(peer: PeerView, silent_s: float, lost_s: float) -> bool:
    summary = peer.summary
    if summary.done or summary.finished is not None:
        return True
    if peer.alive is None and peer.heard_s >= lost_s:
        return True
    return peer.heard_s < silent_s and summary.signs.quiet
