"""Named sets of frames, each one pattern: `function (file)`, `|` for or, `*` for anything.

A class before the function does not matter, and files are compared from their package on.
"""

# How ranks are compared: frames that name a collective operation
COLLECTIVE = (
    "all_reduce*|all_gather*|allgather*|allreduce*|broadcast*|_broadcast*|barrier|"
    "monitored_barrier (torch/distributed/*|deepspeed/comm/*|horovod/*) || reduce|"
    "reduce_scatter*|all_to_all*|gather|gather_object|scatter* (torch/distributed/*|"
    "deepspeed/comm/*|horovod/*) || send|recv|isend|irecv|batch_isend_irecv|send_object_list|"
    "recv_object_list|_all_gather_base|_reduce_scatter_base (torch/distributed/*|"
    "deepspeed/comm/*) || *ProcessGroup*::all*|*ProcessGroup*::broadcast*|"
    "*ProcessGroup*::barrier*|*ProcessGroup*::reduce*|*ProcessGroup*::_*_base* || "
    "*ProcessGroup*::gather*|*ProcessGroup*::scatter*|*ProcessGroup*::send*|*ProcessGroup*::recv*"
    " || *MPI_Allreduce|*MPI_Reduce|*MPI_Reduce_scatter*|*MPI_Allgather*|*MPI_Alltoall*|"
    "*MPI_Bcast|*MPI_Barrier|*MPI_Gather*|*MPI_Scatter* || ncclAll*|ncclBroadcast*|ncclReduce*|"
    "ncclSend*|ncclRecv*|Hccl*All*|HcclBroadcast*|HcclReduce*|*mlx::core::distributed* || "
    "all_reduce|all_gather*|reduce|reduce_scatter*|broadcast*|barrier|alltoall*|scatter|send|recv"
    " (paddle/distributed/*|mindspore/*) || sync_global_devices|sync_global_processes|"
    "process_allgather|broadcast_one_to_all|assert_equal (jax/experimental/multihost_utils.py|"
    "orbax/*) || rendezvous|all_reduce|all_gather*|reduce_scatter*|all_to_all|mesh_reduce|"
    "collective_permute (torch_xla/core/xla_model.py) || all_reduce*|all_gather*|broadcast_send*|"
    "broadcast_recv*|barrier (tensorflow/python/ops/*collective*|tensorflow/python/distribute/*)"
    " || all_reduce*|all_gather*|allreduce*|allgather*|reduce_dict|reduce_loss_dict|"
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
"""Frames that wait for other ranks without naming the operation."""
BACKWARD = (
    "_engine_run_backward|run_backward|*PythonEngine*|*autograd::Engine* || backward (torch/*)"
)
"""Backward hides the collectives of data parallelism: they run in a thread of their own."""
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
"""The host waits for its device, and with it for the collectives in front of it there."""

# Data loading
WORKER_LOOP = "_worker_loop (torch/utils/data/*|torchdata/*|paddle/*)"
LOADER_WAIT = (
    "_try_get_data|_get_data|_next_data|_try_get_batch|_get_batch (torch/utils/data/*|"
    "torchdata/*|paddle/*) || __get_next_item (batchgenerators/*) || __next__ "
    "(mxnet/gluon/data/*|mindspore/dataset/*|grain/*) || get (keras/utils/data_utils.py|"
    "keras/src/utils/data_utils.py|keras/src/trainers/data_adapters/*|"
    "tensorflow/python/keras/utils/data_utils.py)"
)
FETCHING = (
    "fetch|__getitem__|__getitems__|__next__|__iter__|<listcomp>|collate*|default_collate|"
    "process_data"
)
POOL_WAIT = (
    "get|wait|join|_callmethod|recv|_recv|poll|sleep|select|_poll|next (*multiprocess*/*|"
    "threading.py|queue.py|time.py) || iflatmap_unordered"
)
MAPS = "iflatmap_unordered|map|filter|_map* (datasets/*)"

# Native waits and pools
NATIVE_LOCK = (
    "__lll_lock_wait*|lll_lock_wait*|___pthread_mutex_lock|*pthread_mutex_lock*|*futex_wait*|"
    "*futex_abstimed*|syscall|*pthread_cond_wait*|*sem_wait*|*condition_variable*wait*|"
    "*std::mutex::lock*|*rwlock_*lock*|do_futex_wait*|*gomp_barrier*|*gomp_team_barrier*|do_wait|"
    "do_spin|*__kmp_*"
)
NATIVE_POOL = (
    "*kmp_*|gomp_*|GOMP_*|omp_*|*cv::*|cv2*|*set_num_threads*|*setNumThreads*|*ThreadPool*|"
    "*blas_*|*exec_blas*|*openblas*|*mkl_*|*at::parallel_for*|*invoke_parallel*|*tbb::*|*dnnl*|"
    "*arrow::internal* || *rayon*|*crossbeam*|*tokenizers*|*polars*|*tensorstore*|*decord*|"
    "*duckdb*|*lance::*|*zarrs*|*grpc_core*|*absl::*|*tsl::*|__cxa_atexit* || * (libgomp*|"
    "libiomp*|libomp*|libopencv*|cv2*|libmkl_*|libopenblas*|libtbb*|libblis*)"
)
OMP_BARRIER = (
    "*gomp_team_barrier*|*gomp_barrier*|*__kmp_hyper_barrier*|*__kmp_join_barrier*|"
    "*__kmp_fork_barrier*|*__kmp_barrier*|*__kmp_wait_*|*kmp_flag*|*__kmp_suspend*|"
    "GOMP_parallel*|*__kmp_fork_call*|*__kmpc_fork_call*|*blas_thread*|*exec_blas*"
)
TAKES_GIL = (
    "take_gil*|PyEval_AcquireThread|PyEval_RestoreThread|PyGILState_Ensure|*gil_scoped_acquire*|"
    "_PyThreadState_Attach|PyEval_AcquireLock|*PyGILState_Ensure*"
)
IMPORT_LOCK = (
    "acquire|_lock_unlock_module|__enter__ (<frozen importlib._bootstrap>|importlib/_bootstrap.py)"
)
PYTHON_LOCK = (
    "*PyThread_acquire_lock*|*rlock_acquire*|*lock_PyThread*|acquire_timed*|_PyMutex_LockTimed"
)
NATIVE_JOIN = (
    "*__cxa_guard_acquire*|*LockLatch*|*pthread_join*|__pthread_clockjoin_ex|*std::thread::join*|"
    "*::~*|*ncclCommAbort*|*ncclCommDestroy*|*cudaEventDestroy*|*cuEventDestroy*|"
    "*cudaStreamDestroy*|*decref*wait*|*shutdown*|*ThreadPool*::~*|*std::future*wait*|"
    "*std::condition_variable::wait*|__lll_lock_wait*|*pthread_mutex_lock*|cudaLaunchKernel*|"
    "cuLaunchKernel*|*cudaFree*"
)

# Work of one rank alone
PREPARES_DATA = (
    "map|filter|_map_single|iflatmap_unordered|_prepare_split*|download_and_prepare|load_dataset|"
    "save_to_disk|from_generator|shuffle|sort|train_test_split|flatten_indices|select "
    "(datasets/*) || *tokeniz*|*preprocess*|*prepare_data*|prepare_*|create_csv*|run_on_main|"
    "*build_index*|*build_*_ind*|*build_*cache*|*index_mapping*|*scan_*|*cache_labels*|"
    "*get_labels*|*prepare_dataset*|*pack_*|*process_dataset*|*make_dataset*|*build_dataset* || "
    "from_pretrained|snapshot_download|hf_hub_download|cached_file*|load_checkpoint*|extractall|"
    "unpack_archive|copytree|copyfileobj|rmtree|md5*|sha256*"
)
READS_STATE = (
    "load_tensor|read_data|restore*|_restore*|*deserialize*|load_checkpoint*|load_state*|"
    "load_shard*|read_shard*|*read_file*|_read_*|read_array*|load_array*"
)
"""One rank reads for longer than the others: it has not left."""
EVALUATES_OR_SAVES = (
    "evaluate*|evaluation_loop|prediction_loop|prediction_step|predict*|validate*|validation*|"
    "eval_*|_eval*|run_eval*|test_loop|compute_metrics|do_eval|on_validation*|generate|sample|"
    "*_evaluate || _save_checkpoint|save_checkpoint*|save_model*|save_pretrained|save_state*|"
    "_save*|save|_maybe_log_save_evaluate|torch_save|save_file|push_to_hub|*_checkpoint"
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
    "botocore/*) || cmdloop|interaction (pdb.py|cmd.py|bdb.py) || init_process_group|"
    "_create_c10d_store|_store_based_barrier (torch/distributed/*) || wait "
    "(torch/utils/file_baton.py) || * (torch/_inductor/*|triton/*|torch/_dynamo/*)"
)

# Saves of sharded models
GATHERS_STATE = (
    "_all_gather_flat_param|_unshard_params*|_full_*_state_dict*|_full_pre_state_dict_hook|"
    "_full_post_state_dict_hook|summon_full_params|_summon_full_params|foreach_all_gather|"
    "full_tensor|_gather_full_*|_all_gather_optim_state*|full_optim_state_dict|"
    "_optim_state_dict*|_convert_state*|_iterate_state_dict|_gather_state_dict|"
    "_gather_orig_param_state|_communicate_optim_state|_consolidate* (torch/distributed/*|"
    "torch/*fsdp*) || state_dict|full_state_dict|get_model_state_dict|get_optimizer_state_dict|"
    "get_state_dict|_get_model_state_dict|_get_full_model_state_dict (torch/distributed/*) || "
    "_zero3_consolidated*|_gather_zero*|GatheredParameters*|consolidated_16bit* (deepspeed/*) || "
    "get_state_dict|save_fsdp_model|save_fsdp_optimizer|_prepare_sd* (accelerate/*)"
)
IN_A_STEP = (
    "_pre_forward|_post_forward|_root_pre_forward|pre_forward|post_forward|_pre_backward_hook|"
    "_pre_backward|pre_backward|_prefetch_handle|_prefetch_unshard (torch/*) || "
    "_engine_run_backward|run_backward|*PythonEngine*|*autograd::Engine*"
)
"""Parameters are gathered for every step, too: that is no save."""
SENDS_AWAY = (
    "post|put|patch (requests/*|httpx/*|aiohttp/*|urllib3/*) || upload*|put_object|push_to_hub|"
    "_upload*|create_commit|upload_fileobj|sendmail"
)
"""Out to a server, not in from it."""
NETWORK_READ = (
    "read|recv_into|readinto|recv|_recv*|do_handshake|create_connection|connect|getaddrinfo|wait|"
    "_safe_read|_read_status|readline|peek|begin|select|poll|sleep|sendall|stream|iter_content|"
    "read_chunked|_raw_read|receive_data|_receive_event|acquire|result|download_files|xet_get|"
    "urlopen|send"
)

# Compilers
INDUCTOR_WAIT = (
    "wait|_wait_futures|result|get_result|benchmark*|_compile_end|async_compile* "
    "(torch/_inductor/async_compile.py|torch/_inductor/codecache.py|"
    "torch/_inductor/compile_worker/subproc_pool.py|torch/_inductor/autotune_process.py)"
)
COMPILERS = (
    "compile|make_llir|make_ttgir|make_ttir|make_ptx|make_cubin|ast_to_ttir|optimize_ttgir|"
    "translate*|_precompile*|precompile*|parse|run_pass*|link_extern_libs|warmup (triton/*|"
    "torch/_inductor/runtime/*) || *llvm::*|*mlir::*|*LLVM*|*ptxas*|*nvrtc* || _compile_file|"
    "compile_file|_run_build_command|run_compile_cmd|load_pybinding*|_worker_compile_cpp|"
    "compile_cpp* (torch/_inductor/*) || backend_compile*|compile_or_get_cached|"
    "_compile_and_write_cache (jax/_src/compiler.py) || compile*|compile_file|_compile_for_args "
    "(numba/core/*) || jit_load|load (deepspeed/ops/op_builder/*) || _run_ninja_build|"
    "_write_ninja_file_and_build_library (torch/utils/cpp_extension.py|torch/utils/*)"
)
AUTOTUNES = (
    "_bench|benchmark|autotune|prune_configs|check_disk_cache (triton/runtime/autotuner.py) || "
    "do_bench*|_summarize_statistics (triton/testing.py) || benchmark_all_configs|"
    "autotune_to_one_config|coordinate_descent_tuning|autotune|bench|benchmark*|do_bench* "
    "(torch/_inductor/runtime/*|torch/_inductor/select_algorithm.py|"
    "torch/_inductor/autotune_process.py)"
)

# The ranks meet, and exchange something for the first time
RENDEZVOUS = (
    "initialize|connect (jax/_src/distributed.py) || wait_at_barrier|multihost_broadcast_sync || "
    "_initialize_multi_worker|_configure_coordination_service|_start_server* "
    "(tensorflow/python/*) || init_parallel_env|_init_parallel_env (paddle/distributed/*) || "
    "hvd_init|init (horovod/common/*|mindspore/communication/*|xgboost/rabit.py|"
    "xgboost/collective.py) || set_network (lightgbm/*) || <module> (mpi4py/__init__.py|"
    "mpi4py/MPI*) || init_process_group|_create_c10d_store|_store_based_barrier|"
    "_env_rendezvous_handler|_tcp_rendezvous_handler|next_rendezvous|rendezvous|"
    "_new_process_group_helper|init_distributed|*TCPStore*|_rendezvous*|get_all|barrier "
    "(torch/distributed/*|deepspeed/comm/*)"
)
PAST_RENDEZVOUS = (
    "all_reduce|all_gather*|broadcast|monitored_barrier|barrier "
    "(torch/distributed/distributed_c10d.py)"
)
COMM_INIT = (
    "*initXCCLComm*|*create_comm_i*|*atl_*::init_transport*|*pmrt_barrier*|*hcclCommInit*|"
    "*HcclCommInit*|*ncclCommInit*|*getNCCLComm*|*initNCCLComm*|*broadcastUniqueNCCLID*|"
    "*bootstrapInit*|*ncclTransport*Setup*|*ncclTopo*|*ncclCommSplit*|*eagerConnectSingleDevice*|"
    "*NCCLComm::create*"
)
DDP_CONSTRUCTOR = "__init__ (torch/nn/parallel/distributed.py)"
FIRST_EXCHANGE = (
    "_verify_param_shape*|_verify_model_across_ranks|_verify_params_across_processes|"
    "_sync_module_states|_sync_params_and_buffers|_ddp_init_helper|_broadcast_coalesced|"
    "_distributed_broadcast_coalesced|_build_params_for_reducer || *getNCCLComm*|*ncclCommInit*"
)

# Services
TRACKERS = (
    "* (wandb/*|comet_ml/*|mlflow/*|neptune*/*|clearml/*|trains/*|swanlab/*|aim/*|trackio/*|"
    "dagshub/*|polyaxon/*|azureml/*|guild/*|visdom/*|dvclive/*|pluto/*|determined/*|sacred/*)"
)
TRACKER_FINISHES = (
    "close (torch/utils/tensorboard/*|tensorboardX/*) || finish|_finish|_on_finish|_atexit*|"
    "teardown|_teardown|stop|close|end|_on_end|end_run|wait_for_completion|wait_for_uploads|"
    "wait_for_processing|_shutdown|__shutdown|shutdown|wait_until_finish* (wandb/*|comet_ml/*|"
    "mlflow/*|neptune*/*|clearml/*|swanlab/*|aim/*|trackio/*|dvclive/*)"
)
TRACKER_WRAPS = (
    "* (mlflow/utils/autologging_utils/*|wandb/agents/*|comet_ml/monkey_patching.py|"
    "clearml/binding/*|determined/exec/*)"
)
"""What a tracker puts around the program's own calls."""

# The end of a process
EXITING = (
    "_exit_function (*multiprocess*/util.py|billiard/util.py) || _python_exit "
    "(concurrent/futures/*)"
)
ENDS_WITH_A_WAIT = (
    "join|_run_finalizers|_finalize_*|_terminate_pool|wait|poll|acquire|get|recv|sleep|select|"
    "result|_wait_for_tstate_lock|communicate|shutdown|close|flush|__enter__"
)
DISMANTLES_GROUP = (
    "destroy_process_group|_shutdown_backend|_abort_process_group|shutdown "
    "(torch/distributed/distributed_c10d.py)"
)

# Work for others
EXTENSION_LOCK = "wait (*file_baton.py)"
BUILDS_EXTENSION = (
    "_run_ninja_build|_write_ninja_file_and_build_library (torch/utils/cpp_extension.py)"
)

# Downloads
HUB = (
    "http_get|xet_get|_download_to_tmp_and_move|hf_hub_download|_hf_hub_download*|cached_file*|"
    "snapshot_download|get_hf_file_metadata|_get_metadata_or_catch_error|_request_wrapper|"
    "http_backoff|_httpx_follow_relative_redirects*|model_info|dataset_info|repo_info|"
    "list_repo_files|list_repo_tree|get_session|_inner_hf_hub_download|hf_raise_for_status|"
    "download_and_prepare|cached_path|get_from_cache|fsspec_get|_request_with_retry|thread_map "
    "(huggingface_hub/*|transformers/utils/hub.py|datasets/utils/*|datasets/download/*|hf_xet*|"
    "diffusers/*|sentence_transformers/*)"
)
