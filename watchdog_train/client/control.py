"""Requests of the supervisor: the control page, read one word at a time; it must never raise.

Ranks of one machine have to act on a request at the same step, or one leaves a collective that
the others wait in. The first rank publishes the step, two steps ahead; every rank finds it in
time, because a step needs all of them. Ranks of several supervisors agree by agreement.py.
"""

import os
import sys

from watchdog_train.client import agreement, slot
from watchdog_train.client import layout as L  # noqa: N812

_STEP_BITS = 40
_STEP_MASK = (1 << _STEP_BITS) - 1
_SAVE, _STOP = 0, 1
_REFUSED = (L.W_SAVE_REFUSED, L.W_STOP_REFUSED)

_page = None
_agreement = None
_together = False


def open_page():
    """Map the control page; without one there are no requests."""
    global _page
    try:
        _page = _map(os.path.join(slot.slot_dir, L.CONTROL_FILE), L.CONTROL_BYTES, writable=False)
        if _page is not None and _page[L.C_MAGIC] != L.MAGIC:
            _page = None
    except Exception:
        _page = None


def save_due(step):
    """Whether a save was asked for and this is the step to do it at; answers the request."""
    return _due(L.C_SAVE_REQUEST, L.C_SAVE_BASE, L.W_SAVE_ANSWERED, _SAVE, step)


def stop_due(step):
    """Whether a stop was asked for and this is the step to do it at; answers the request."""
    page = _page
    if page is None:
        return False
    # Once true it stays true: a loop may ask in several places before it ends.
    if slot.words[L.W_STOP_ANSWERED] >= page[L.C_STOP_REQUEST] > page[L.C_STOP_BASE]:
        return True
    return _due(L.C_STOP_REQUEST, L.C_STOP_BASE, L.W_STOP_ANSWERED, _STOP, step)


def dump_due():
    """Whether the stacks of this process are asked for; the caller answers."""
    page = _page
    if page is None:
        return 0
    request = page[L.C_DUMP_REQUEST]
    answered = max(slot.words[L.W_DUMP_ANSWERED], page[L.C_DUMP_BASE])
    return request if request > answered else 0


def can_be_asked():
    """Whether all ranks have a place where they can agree on a step."""
    if _world_size() == 1 or _share_memory():
        return True
    return _of_several_tasks() and agreement.server() is not None


def listens():
    """A hook of a framework reads the requests from now on, to save and to stop."""
    if can_be_asked():
        slot.words[L.W_CAN_BE_ASKED] |= 3


def all_ranks_are_here():
    """For a framework that knows it; the variables of a launcher may not show it."""
    global _together
    _together = True


@slot.harmless
def _due(request_word, base_word, answer_word, kind, step):
    page = _page
    if page is None:
        return False
    request = page[request_word]
    words = slot.words
    if request <= words[answer_word] or request <= page[base_word]:
        return False
    world = _world_size()
    if world > 1:
        if not _share_memory():
            return _due_together(kind, request, step, world, answer_word)
        if not _agreed(kind, request, step):
            return False
    words[answer_word] = request
    return True


def _due_together(kind, request, step, world, answer_word):
    """The same for ranks of several supervisors."""
    words = slot.words
    if request <= words[_REFUSED[kind]] or not _of_several_tasks():
        return False
    # Supervisors give a save the same number. A stop is the last word of an attempt.
    name, number = ("save", request) if kind == _SAVE else ("stop", 0)
    answer = agreement.due(name, number, step, world, slot.attempt)
    if answer == agreement.REFUSE:
        words[_REFUSED[kind]] = request
    if answer != agreement.ACT:
        return False
    words[answer_word] = request
    return True


def _agreed(kind, request, step):
    """Whether the step that the first rank chose for this request has come."""
    global _agreement
    name = L.AGREE_PREFIX + str(slot.attempt)
    path = os.path.join(slot.slot_dir, name)
    leader = slot.words[L.W_RANK] == 1
    if _agreement is None:
        if leader:
            slot.replace_file(name, bytes(L.CONTROL_BYTES))
        _agreement = _map(path, L.CONTROL_BYTES, writable=leader)
        if _agreement is None:
            return False
    chosen = _agreement[kind]
    # Request number and step in one word, so that neither can be read without the other.
    if chosen >> _STEP_BITS != request & 0xFFFFFF:
        if leader:
            _agreement[kind] = (request & 0xFFFFFF) << _STEP_BITS | (step + 2) & _STEP_MASK
        return False
    return step >= chosen & _STEP_MASK


def _map(path, size, writable):
    import mmap

    flags = (os.O_RDWR if writable else os.O_RDONLY) | slot.SAFE_FLAGS
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        # A shorter file would be a SIGBUS on reading, not an exception.
        if os.fstat(descriptor).st_size < size:
            return None
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return slot.map_file(descriptor, size, access=access)
    finally:
        os.close(descriptor)


def _world_size():
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return slot.words[L.W_WORLD_SIZE] or 1


def _share_memory():
    """Whether all ranks are on this machine, under this one supervisor."""
    if _of_several_tasks():
        return False
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return _together or (local.isdigit() and int(local) == _world_size())


def _of_several_tasks():
    return _page is not None and _page[L.C_TASKS] > 1


def _after_fork():
    global _agreement
    _agreement = None
    agreement.forget()


slot.on_fork_child.append(_after_fork)
slot.on_open.append(open_page)
