"""Remedies of how a training runs, other than loading its data, as data."""

from __future__ import annotations

from watchdog_train.core.recovery.remedies import RemedySpec, variables

THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
NOT_A_NETWORK = "^lo,docker,podman,virbr,veth,br-,cni,flannel,cali,tun,tap"
"""NCCL reads a leading ^ as "none that begin with" (its documentation, NCCL_SOCKET_IFNAME)."""

EXECUTION = (
    RemedySpec(
        id="omp-1",
        summary="one thread for OpenMP, MKL, OpenBLAS and torch",
        env=THREADS,
        changes="sums on the CPU may be taken in another order",
        may_break="nothing; computing on the CPU gets slower",
        script_line="torch.set_num_threads(1)  # and OMP_NUM_THREADS=1 before Python starts",
    ),
    RemedySpec(
        id="wandb-offline",
        summary="keeps wandb's data on disk instead of sending it",
        env={"WANDB_MODE": "offline"},
        in_part={"id": "wandb-offline", "keep_rank_0": True},
        needs_allow=True,
        precondition="rank 0 only with --allow wandb-offline, because the dashboard goes quiet",
        changes="nothing in the training; the dashboard shows nothing until `wandb sync DIR`",
        may_break="sweeps and alerts that need the server",
        script_line='wandb.init(mode="offline")  # later: wandb sync wandb/offline-run-*',
    ),
    RemedySpec(
        id="no-compile",
        summary="runs without torch.compile",
        **variables(
            "remove torch.compile(...), or TORCH_COMPILE_DISABLE=1\n"
            "TrainingArguments(..., torch_compile=False)  # with a Trainer",
            TORCH_COMPILE_DISABLE="1",
        ),
        changes="rounding differs from compiled kernels",
        may_break="memory may no longer suffice; steps get slower",
    ),
    RemedySpec(
        id="compile-threads-1",
        summary="compiles in the main process",
        **variables(TORCHINDUCTOR_COMPILE_THREADS="1"),
        may_break="nothing; compiling takes longer",
    ),
    RemedySpec(
        id="stagger-start",
        summary="lets the ranks of a machine start one after the other",
        parameters={"n": 10},
        precondition="torchrun or accelerate launch; each rank waits 10 s (N s) more at an import",
        may_break="nothing; the start takes longer",
        script_line='time.sleep(10 * int(os.environ.get("LOCAL_RANK", 0)))  # before the imports',
    ),
    RemedySpec(
        id="celery-solo",
        summary="runs the tasks of a Celery worker in its own process, without gossip and mingle",
        precondition="a worker of Celery that trains in tasks, but not with eventlet or gevent",
        may_break="one task at a time, without time limits and revoking; a broker may miss "
        "heartbeats during a long one",
        script_line="celery -A app worker --pool solo --without-gossip --without-mingle",
    ),
    RemedySpec(
        id="nccl-p2p-off",
        summary="keeps NCCL off direct transfers between GPUs",
        **variables(NCCL_P2P_DISABLE="1"),
        precondition="training uses NCCL; without it this has no effect",
        may_break="nothing; collectives get slower",
        platforms=("linux",),
    ),
    RemedySpec(
        id="nccl-ib-off",
        summary="keeps NCCL off InfiniBand and RoCE",
        **variables(NCCL_IB_DISABLE="1"),
        precondition="training uses NCCL over several machines; else this has no effect",
        may_break="nothing; collectives between machines get much slower",
        platforms=("linux",),
    ),
    RemedySpec(
        id="nccl-socket-ifname",
        summary="keeps NCCL off interfaces that lead to no other machine",
        **variables(
            "NCCL_SOCKET_IFNAME=eth0 (the name of yours) on every node, and GLOO_SOCKET_IFNAME, "
            "which takes no exclusions",
            NCCL_SOCKET_IFNAME=NOT_A_NETWORK,
        ),
        precondition="training uses NCCL; an NCCL_SOCKET_IFNAME of yours is replaced",
        may_break="a machine that is reached by such an interface only",
        platforms=("linux",),
    ),
    RemedySpec(
        id="raise-ddp-timeout",
        summary="lets ranks wait for each other for two hours",
        parameters={"seconds": 7200},
        precondition="init_process_group and new_group with a shorter timeout",
        may_break="nothing; torch's own end of a real hang comes later",
        script_line="init_process_group(timeout=timedelta(hours=2))\n"
        "TrainingArguments(..., ddp_timeout=7200)  # with a Trainer",
    ),
    RemedySpec(
        id="allocator-expandable",
        summary="lets segments of CUDA memory grow, so that less of it is lost in gaps",
        **variables(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
        precondition="training on CUDA; a PYTORCH_CUDA_ALLOC_CONF of yours is replaced",
        may_break="memory shared between processes by CUDA IPC",
        platforms=("linux",),
    ),
    RemedySpec(
        id="memory-relief",
        summary="collects garbage, empties the cache of the GPU and waits for it every 5 steps",
        parameters={"n": 5},
        precondition="steps of an optimizer of torch; memory that is in use is not freed",
        may_break="nothing; steps get slower, and a pending error of the GPU is raised earlier",
        script_line="gc.collect(); torch.cuda.synchronize(); torch.cuda.empty_cache()  "
        "# every 5 steps",
    ),
    RemedySpec(
        id="debug-detail",
        summary="has torch check every collective, to name the rank that differs",
        **variables(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL python train.py", TORCH_DISTRIBUTED_DEBUG="DETAIL"
        ),
        evidence_only=True,
        precondition="for one attempt, because it is slow",
        # torch 2.13, CPU: DistributedDataParallel over gloo ended so in 5 of 5 trials.
        may_break="with gloo ranks may end with a segmentation fault before their first step",
        needs_allow=True,
    ),
    RemedySpec(
        id="launch-blocking",
        summary="waits for every CUDA kernel, so that the stack shows the one that hangs",
        **variables("CUDA_LAUNCH_BLOCKING=1 python train.py", CUDA_LAUNCH_BLOCKING="1"),
        evidence_only=True,
        precondition="for one attempt, because it is slow",
        may_break="nothing; it mends nothing either, it names the kernel",
        platforms=("linux", "win32"),
    ),
    RemedySpec(
        id="plain-retry",
        summary="starts again with nothing changed",
        parameters=None,
        precondition="the evidence says that the trouble may pass",
        may_break="nothing",
    ),
)
