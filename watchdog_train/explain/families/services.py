"""What training waits for outside of itself: people, trackers, downloads, lock files, disks."""

from __future__ import annotations

from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import Cause, family, likely, possible, proven
from watchdog_train.explain.scene import Captured, Scene

_DEBUGGERS = (
    "cmdloop|interaction|_cmdloop|interactive|interact|embed "
    "(cmd.py|pdb.py|bdb.py|code.py|*ipdb*|IPython/*|pudb/*)"
)
_PROMPTS = (
    "prompt_choice|prompt*|_prompt*|ask|unsafe_ask|read_events|confirm|visible_prompt_func "
    "(wandb/*|click/*|questionary/*|prompt_toolkit/*|rich/*|huggingface_hub/*) || "
    "getpass|unix_getpass|_raw_input|fallback_getpass|win_getpass (getpass.py) || "
    "resolve_trust_remote_code (transformers/*|datasets/*) || _interactive_download (nltk/*) || "
    "builtin_input*|*PyOS_Readline*|PyOS_StdioReadline|my_fgets || input (<*) || "
    "readline (<frozen codecs>) || wait_for_client (debugpy/*) || set_trace (*rpdb*) || "
    "mainloop|start_event_loop|start_main_loop|exec_|exec (tkinter/*|matplotlib/*|PyQt*)"
)
_WANDB_STARTS = (
    "wandb_init|init|_wait_for_ports|wait_for_port*|login|_login|attach|_attach|ensure_started|"
    "start|_launch_server|wait|_wait*|wait_for*|wait_or|deliver_*|_ensure_launched|setup|_setup|"
    "get_run|read_response* (wandb/*)"
)
_WANDB_ENDS = "finish|_finish|_on_finish|_atexit*|teardown|prompt* (wandb/*)"
_ASKS_SERVER = "request|send|urlopen|wait|read|recv*|connect*|acquire|sleep|select|get|post|poll"
_TRACKER_ENDS = (
    "close (torch/utils/tensorboard/*|tensorboardX/*) || finish|_finish|stop|close|end|_on_end|"
    "end_run|wait_for_completion|wait_for_uploads|wait_for_processing|_shutdown|__shutdown|"
    "shutdown|wait_until_finish* (comet_ml/*|mlflow/*|neptune*/*|clearml/*|swanlab/*|aim/*|"
    "trackio/*|dvclive/*) || * (mlflow/utils/autologging_utils/*|comet_ml/monkey_patching.py|"
    "clearml/binding/*|determined/exec/*)"
)
"""A tracker finishes, or wraps the program's own calls."""
_HUB = (
    "http_get|xet_get|_download_to_tmp_and_move|*hf_hub_download*|cached_file*|snapshot_download|"
    "get_hf_file_metadata|_get_metadata_or_catch_error|*_request_w*|http_backoff|"
    "_httpx_follow_relative_redirects*|model_info|dataset_info|repo_info|list_repo_files|"
    "list_repo_tree|get_session|hf_raise_for_status|download_and_prepare|cached_path|"
    "get_from_cache|fsspec_get|thread_map (huggingface_hub/*|transformers/utils/hub.py|"
    "datasets/utils/*|datasets/download/*|hf_xet*|diffusers/*|sentence_transformers/*)"
)
_NETWORK_READ = (
    "read|recv_into|readinto|recv|_recv*|do_handshake|create_connection|connect|getaddrinfo|wait|"
    "_safe_read|_read_status|readline|peek|begin|select|poll|sleep|sendall|stream|iter_content|"
    "read_chunked|_raw_read|receive_data|_receive_event|acquire|result|xet_get|urlopen|send"
)
_FILE_LOCKS = (
    "acquire|_poll_until_acquired|__enter__|_acquire|lock|WeakFileLock (filelock/*|filelock.py|"
    "portalocker/*|fasteners/*|oslo_concurrency/*|zc/lockfile*|lockfile/*)"
)
_REMOTE = r"nfs|rpc_|fuse|ceph|lustre|ptlrpc|ll_|cl_|gpfs|mmfs|beegfs|cifs|smb|9p|netfs"
_ONLY_REMOTE = r"nfs\d?_|rpc_wait|rpc_run|fuse_|ceph_|lustre|ptlrpc|gpfs|beegfs|cifs|smb2|v9fs"
_BLOCKS = (
    r"io_schedule|blk_|bio_|jbd2|ext4|xfs|btrfs|wait_on_(?:page|buffer|sync_kiocb)|folio_wait|iomap|"
    r"do_get_write_access|balance_dirty|sync_inode|nvme|scsi|writeback|rq_qos|md_|raid|dm_|zfs|zio_"
)
_NO_DISK = "nvidia|nv_|uvm|os_acquire|rm_|rwsem|mmap|page_fault|futex|amdgpu|kfd"


@family("waiting-for-input", kind="stopped", of=("terminal", "stopped"))
def somebody_is_to_type(_: Scene, process: Captured) -> Cause | None:
    """A person is to type. Remove the breakpoint, or set the answer in advance."""
    asks = process.any_passes(_DEBUGGERS) or process.stack.inner(_PROMPTS)
    terminal = process.trains and process.doing_what == "terminal"
    return proven() if (asks or terminal) and not process.busy else None


@family("logger-service-init", "wandb/wandb#5214", kind="hang", of=("tcp", "pipe"),
        remedies=("wandb-offline",))  # fmt: skip
def tracker(_: Scene, process: Captured) -> Cause | None:
    """The experiment tracker's service does not start, or its server does not answer."""
    stack = process.stack
    starts = stack.passes(_WANDB_STARTS) and stack.avoids(_WANDB_ENDS)
    others = f"* (wandb/*) || {_TRACKER_ENDS}"
    asks = stack.passes(sets.TRACKERS, _ASKS_SERVER) and stack.avoids(others)
    return likely() if starts or asks else None


@family("hub-download", "huggingface/xet-core#883", kind="hang", of=("tcp",),
        remedies=("hf-offline", "xet-off", "hub-timeouts", "open-in-worker"))  # fmt: skip
def download(_: Scene, process: Captured) -> Cause | None:
    """Nothing arrives. The server, a proxy or the network does not answer."""
    remote_file = process.any_passes("sync (fsspec/asyn.py)")
    return likely() if remote_file or process.any_passes(_HUB, _NETWORK_READ) else None


@family("file-lock", "huggingface/datasets#3983", kind="hang", of=("file_lock", "sleep"),
        remedies=("clear-stale-lock", "local-cache"))  # fmt: skip
def file_lock(scene: Scene, process: Captured) -> Cause | None:
    """A process holds a lock on a file that the training needs."""
    baton, locked = process.any_passes(sets.EXTENSION_LOCK), process.any_passes(_FILE_LOCKS)
    if scene.lock_owner_is_dead and (baton or locked):
        return proven("A lock file is held by a process that is gone. Nobody will remove it.")
    if baton and not scene.builds_extension(process):
        return likely("Nobody builds the extension here: the lock file was left behind.")
    return likely() if locked else None


@family("disk-io", "nfs-ganesha/nfs-ganesha#1327", kind="hang",
        of=("file", "file_lock", "disk", "batch"), remedies=("local-cache",))  # fmt: skip
def disk(_: Scene, process: Captured) -> Cause | None:
    """A disk or network file system does not answer. Until then the process cannot be killed."""
    remote = process.in_kernel(_ONLY_REMOTE) or getattr(process.doing, "network", None)
    blocked = process.is_uninterruptible
    if remote or (blocked and process.in_kernel(f"{_REMOTE}|{_BLOCKS}")):
        return likely()
    if not blocked or not (process.trains or process.helps) or process.in_kernel(_NO_DISK):
        return None
    device = process.any_passes("*cuda*|*nvidia*|*nccl*")
    parent = process.parent
    works = parent is not None and (parent.is_runnable or parent.busy)
    return possible() if process.in_kernel(".") or not (device or works) else None
