"""Named sets of frames, each one pattern: `function (file)`, `|` for or, `*` for anything.

A class before the function does not matter, and files are compared from their package on.
"""

# Waits for other ranks
COLLECTIVE = (
    "all_reduce*|all_gather*|allgather*|allreduce*|broadcast*|_broadcast*|barrier|"
    "monitored_barrier|reduce|reduce_scatter*|all_to_all*|gather|gather_object|scatter*|send|recv|"
    "isend|irecv|batch_isend_irecv|send_object_list|recv_object_list|_all_gather_base|"
    "_reduce_scatter_base (torch/distributed/*|deepspeed/comm/*|horovod/*) || "
    "*ProcessGroup*::all*|*ProcessGroup*::broadcast*|*ProcessGroup*::barrier*|"
    "*ProcessGroup*::reduce*|*ProcessGroup*::_*_base*|*ProcessGroup*::gather*|"
    "*ProcessGroup*::scatter*|*ProcessGroup*::send*|*ProcessGroup*::recv*|*MPI_Allreduce|"
    "*MPI_Reduce*|*MPI_Allgather*|*MPI_Alltoall*|*MPI_Bcast|*MPI_Barrier|*MPI_Gather*|"
    "*MPI_Scatter*|ncclAll*|ncclBroadcast*|ncclReduce*|ncclSend*|ncclRecv*|Hccl*All*|"
    "HcclBroadcast*|HcclReduce*|*mlx::core::distributed* || all_reduce*|all_gather*|reduce|"
    "reduce_scatter*|broadcast*|barrier|alltoall*|all_to_all|scatter|send|recv|rendezvous|"
    "mesh_reduce|collective_permute (paddle/distributed/*|mindspore/*|torch_xla/core/xla_model.py|"
    "tensorflow/python/distribute/*) || sync_global_devices|sync_global_processes|"
    "process_allgather|broadcast_one_to_all|assert_equal (jax/experimental/multihost_utils.py|"
    "orbax/*) || all_reduce*|all_gather*|allreduce*|allgather*|reduce_dict|reduce_loss_dict|"
    "reduce_tensor|reduce_value|reduce_mean|average_gradients"
)
WAITS_FOR_RANKS = (
    "*WorkNCCL*|*WorkHCCL*|*WorkXCCL*|*WorkGloo*|*UnboundBuffer*|*waitRecv*|*waitSend*|*gloo::*|"
    "*ncclGroupEnd*|*AsyncWork*::wait* || clip_grad_norm_ (torch/*) || recv|send|_recv_*|_send_*|"
    "_exec_recv*|_exec_send* (deepspeed/runtime/pipe/*) || wait_for_everyone|gather_for_metrics|"
    "_gpu_gather|_gpu_broadcast* (accelerate/*) || wait|synchronize (torch/distributed/*|"
    "deepspeed/comm/*|horovod/*) || _pre_forward|_post_forward|_pre_backward_hook|"
    "_post_backward_hook|_unshard|unshard|wait_for_unshard|_lazy_init (torch/distributed/*fsdp/*)"
    " || _communicate|_p2p_ops|_batched_p2p_ops|recv_forward*|recv_backward*|send_forward*|"
    "send_backward* (megatron/*|apex/*|nemo/*) || fetch_sub_module|"
    "pre_sub_module_forward_function|__all_gather_params|_all_gather_dtype (deepspeed/*)"
)
"""Without naming the operation."""
BACKWARD = (
    "_engine_run_backward|run_backward|*PythonEngine*|*autograd::Engine* || backward (torch/*)"
)
"""It hides the collectives of data parallelism, which run in a thread of their own."""
NATIVE_SYNCHRONISES = (
    "*_local_scalar_dense*|*StreamSynchronize*|*DeviceSynchronize*|*EventSynchronize*|cudaMemcpy*|"
    "*memcpy_and_sync*|cuCtxSynchronize*|*HostSynchronize*|urQueueFinish*|*xpuSynchronize*|"
    "*syncStreamsOnDevice*"
)
SYNCHRONISES = (
    "synchronize (torch/cuda/*|torch/accelerator/*|torch/xpu/*|torch_npu/*|torch_mlu/*|"
    "torch_musa/*|habana_frameworks/*|cupy/*|paddle/device/*) || mark_step|wait_device_ops "
    f"(torch_xla/*) || {NATIVE_SYNCHRONISES}"
)
"""The host waits for its device, and so for the collectives that are queued there."""
DISMANTLES_GROUP = (
    "destroy_process_group|_shutdown_backend|_abort_process_group|shutdown "
    "(torch/distributed/distributed_c10d.py)"
)
RENDEZVOUS = (
    "init_process_group|_create_c10d_store|_store_based_barrier|_env_rendezvous_handler|"
    "_tcp_rendezvous_handler|next_rendezvous|rendezvous|_new_process_group_helper|"
    "init_distributed|*TCPStore*|_rendezvous*|get_all|barrier (torch/distributed/*|"
    "deepspeed/comm/*) || initialize|connect (jax/_src/distributed.py) || "
    "wait_at_barrier|multihost_broadcast_sync || _initialize_multi_worker|"
    "_configure_coordination_service (tensorflow/python/*) || init_parallel_env "
    "(paddle/distributed/*) || hvd_init|init (horovod/common/*|mindspore/communication/*|xgboost/*)"
)
PAST_RENDEZVOUS = (
    "all_reduce|all_gather*|broadcast|monitored_barrier|barrier "
    "(torch/distributed/distributed_c10d.py)"
)

# Data loading
LOADER_WAIT = (
    "_try_get_data|_get_data|_next_data|_try_get_batch|_get_batch (torch/utils/data/*|"
    "torchdata/*|paddle/*) || __get_next_item (batchgenerators/*) || __next__ "
    "(mindspore/dataset/*|grain/*) || get (keras/utils/data_utils.py|"
    "keras/src/utils/data_utils.py|keras/src/trainers/data_adapters/*)"
)
FETCHING = (
    "fetch|__getitem__|__getitems__|__next__|__iter__|<listcomp>|collate*|default_collate|"
    "process_data"
)

# Native waits and pools
NATIVE_POOL = (
    "*kmp_*|gomp_*|GOMP_*|omp_*|*cv::*|cv2*|*set_num_threads*|*setNumThreads*|*ThreadPool*|"
    "*blas_*|*exec_blas*|*openblas*|*mkl_*|*at::parallel_for*|*invoke_parallel*|*tbb::*|*dnnl*|"
    "*arrow::internal*|*rayon*|*crossbeam*|*tokenizers*|*polars*|*tensorstore*|*decord*|"
    "*duckdb*|*lance::*|*zarrs*|*grpc_core*|*absl::*|*tsl::*|__cxa_atexit* || * (libgomp*|"
    "libiomp*|libomp*|libopencv*|cv2*|libmkl_*|libopenblas*|libtbb*|libblis*)"
)
TAKES_GIL = (
    "take_gil*|PyEval_AcquireThread|PyEval_RestoreThread|PyGILState_Ensure|*gil_scoped_acquire*|"
    "_PyThreadState_Attach|PyEval_AcquireLock|*PyGILState_Ensure*"
)
IMPORT_LOCK = (
    "acquire|_lock_unlock_module|__enter__ (<frozen importlib._bootstrap>|importlib/_bootstrap.py)"
)

# Work of one rank alone
PREPARES_DATA = (
    "map|filter|_map_single|iflatmap_unordered|_prepare_split*|download_and_prepare|load_dataset|"
    "save_to_disk|from_generator|shuffle|sort|train_test_split|flatten_indices|select "
    "(datasets/*) || *tokeniz*|*preprocess*|*prepare_data*|prepare_*|create_csv*|run_on_main|"
    "*build_*ind*|*build_*cache*|*index_mapping*|*scan_*|*cache_labels*|*get_labels*|"
    "*pack_*|*process_dataset*|*_dataset|from_pretrained|snapshot_download|hf_hub_download|"
    "cached_file*|load_checkpoint*|extractall|unpack_archive|copytree|copyfileobj|rmtree"
)
READS_STATE = (
    "load_tensor|read_data|restore*|_restore*|*deserialize*|load_checkpoint*|load_state*|"
    "load_shard*|read_shard*|*read_file*|_read_*|read_array*|load_array*"
)
"""One rank may read for longer than the others: that does not mean that it has left."""
EVALUATES_OR_SAVES = (
    "evaluate*|evaluation_loop|prediction_loop|prediction_step|predict*|validate*|validation*|"
    "eval_*|_eval*|run_eval*|test_loop|compute_metrics|do_eval|on_validation*|generate|sample|"
    "*_evaluate|_save*|save|save_*|torch_save|push_to_hub|*_checkpoint|_maybe_log_save_evaluate"
)
LEAVES = (
    "_exit_function|_run_finalizers|_python_exit|destroy_process_group|Py_Finalize*|Py_RunMain|"
    "__run_exit_handlers|exit|sys_exit || _shutdown (threading.py) || * (atexit*) || "
    "finish|teardown|on_train_end|_atexit*|cleanup|merge_and_unload"
)
KNOWN_ELSEWHERE = (
    "__next__ (fairseq/data/iterators.py) || _try_get_data|_get_data|_next_data|"
    "_shutdown_workers|_worker_loop (torch/utils/data/*|torchdata/*) || * (huggingface_hub/*|"
    "wandb/*|filelock/*|requests/*|urllib3/*|httpx/*|httpcore/*|fsspec/*|s3fs/*|aiohttp/*|"
    "botocore/*|torch/_inductor/*|triton/*|torch/_dynamo/*) || cmdloop|interaction "
    "(pdb.py|cmd.py|bdb.py) || init_process_group|_create_c10d_store|_store_based_barrier "
    "(torch/distributed/*) || wait (torch/utils/file_baton.py)"
)
"""Frames that other families explain."""
GATHERS_STATE = (
    "_all_gather_flat_param|_unshard_params*|_full_*state_dict*|summon_full_params|"
    "_summon_full_params|foreach_all_gather|full_tensor|_gather_full_*|_all_gather_optim_state*|"
    "full_optim_state_dict|_optim_state_dict*|_convert_state*|_iterate_state_dict|"
    "_gather_state_dict|_gather_orig_param_state|_communicate_optim_state|_consolidate* "
    "(torch/distributed/*|torch/*fsdp*) || state_dict|full_state_dict|get_*state_dict|"
    "_get_*model_state_dict (torch/distributed/*) || _zero3_consolidated*|_gather_zero*|"
    "GatheredParameters*|consolidated_16bit* (deepspeed/*) || "
    "get_state_dict|save_fsdp_model|save_fsdp_optimizer|_prepare_sd* (accelerate/*)"
)

# Compilers
EXTENSION_LOCK = "wait (*file_baton.py)"
BUILDS_EXTENSION = (
    "_run_ninja_build|_write_ninja_file_and_build_library (torch/utils/cpp_extension.py)"
)

# Services
NO_TASK = (
    "asynloop|synloop (celery/worker/loops.py) || workloop|wait_for_job (billiard/pool.py) || "
    "dequeue_job_and_maintain_ttl|dequeue_any (rq/*)"
)
HAS_A_TASK = (
    "* (celery/app/trace.py) || perform_job|execute_job|monitor_work_horse|main_work_horse (rq/*)"
)
TRACKERS = (
    "* (wandb/*|comet_ml/*|mlflow/*|neptune*/*|clearml/*|trains/*|swanlab/*|aim/*|trackio/*|"
    "dagshub/*|polyaxon/*|azureml/*|guild/*|visdom/*|dvclive/*|pluto/*|determined/*|sacred/*)"
)
