"""The alias has Horovod's names, its order of arguments and its defaults."""

import subprocess
import sys

import pytest

# One function a line; PS and C stand for the default process set and for no compression.
TENSORFLOW = """
init(comm=None, process_sets=None)
shutdown()
is_initialized()
size()
local_size()
cross_size()
rank()
local_rank()
cross_rank()
is_homogeneous()
start_timeline(file_path, mark_cycles=False)
stop_timeline()
mpi_threads_supported()
mpi_enabled()
mpi_built()
gloo_enabled()
gloo_built()
nccl_built()
ddl_built()
ccl_built()
cuda_built()
rocm_built()
check_num_rank_power_of_2(num_rank)
handle_average_backwards_compatibility(op, average)
allreduce(tensor, average=None, device_dense='', device_sparse='', compression=C, op=None, \
prescale_factor=1.0, postscale_factor=1.0, name=None, process_set=PS, ignore_name_scope=False)
grouped_allreduce(tensors, average=None, device_dense='', device_sparse='', compression=C, \
op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=PS, ignore_name_scope=False, \
name=None)
reducescatter(tensor, device_dense='', compression=C, op=Average, name=None, process_set=PS, \
ignore_name_scope=False, prescale_factor=1.0, postscale_factor=1.0)
grouped_reducescatter(tensors, device_dense='', compression=C, op=Average, process_set=PS, \
prescale_factor=1.0, postscale_factor=1.0)
allgather(tensor, name=None, ignore_name_scope=False, process_set=PS)
grouped_allgather(tensors, name=None, ignore_name_scope=False, process_set=PS)
broadcast(tensor, root_rank, name=None, ignore_name_scope=False, process_set=PS)
broadcast_(variables, root_rank, name=None, process_set=PS)
alltoall(tensor, splits=None, name=None, ignore_name_scope=False, process_set=PS)
join()
size_op(process_set_id=0, name=None)
process_set_included_op(process_set_id=0, name=None)
local_size_op(name=None)
rank_op(name=None)
local_rank_op(name=None)
broadcast_variables(variables, root_rank, process_set=PS, inplace=False)
broadcast_object(obj, root_rank=0, session=None, name=None, process_set=PS)
broadcast_object_fn(root_rank=0, session=None, name=None, process_set=PS)
allgather_object(obj, session=None, name=None, process_set=PS)
broadcast_global_variables(root_rank)
DistributedOptimizer(optimizer, name=None, use_locking=False, device_dense='', device_sparse='', \
compression=C, sparse_as_dense=False, backward_passes_per_step=1, op=Average, \
gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None, \
process_set=PS, scale_local_gradients=True)
DistributedGradientTape(gradtape, device_dense='', device_sparse='', compression=C, \
sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, \
process_set=PS, scale_local_gradients=True)
PartialDistributedGradientTape(gradtape, device_dense='', device_sparse='', compression=C, \
sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, \
process_set=PS, local_layers=None, scale_local_gradients=True)
BroadcastGlobalVariablesHook(root_rank, device='')
"""

MPI_OPS = """
_allreduce(tensor, name=None, op=Sum, prescale_factor=1.0, postscale_factor=1.0, \
ignore_name_scope=False, process_set=PS)
"""

KERAS_COMMON = """
broadcast_global_variables(root_rank)
allreduce(value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, \
compression=C)
allgather(value, name=None)
broadcast(value, root_rank, name=None)
reducescatter(value, name=None, op=Average)
load_model(filepath, custom_optimizers=None, custom_objects=None, compression=C, legacy_opts=False)
"""

TENSORFLOW_KERAS = (
    KERAS_COMMON
    + """
DistributedOptimizer(optimizer, name=None, device_dense='', device_sparse='', compression=C, \
sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1, \
average_aggregated_gradients=False, num_groups=0, groups=None, process_set=PS, \
scale_local_gradients=True)
"""
)

KERAS = (
    KERAS_COMMON
    + """
DistributedOptimizer(optimizer, name=None, device_dense='', device_sparse='', compression=C, \
sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, num_groups=0, groups=None)
PartialDistributedOptimizer(optimizer, name=None, device_dense='', device_sparse='', \
compression=C, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, \
backward_passes_per_step=1, average_aggregated_gradients=False, groups=None, process_set=PS, \
local_layers=None, scale_local_gradients=True)
"""
)

CALLBACKS = """
BroadcastGlobalVariablesCallback(root_rank, device='', local_variables=None)
MetricAverageCallback(device='')
LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None, \
staircase=True, momentum_correction=True, steps_per_epoch=None)
LearningRateWarmupCallback(initial_lr, warmup_epochs=5, momentum_correction=True, \
steps_per_epoch=None, verbose=0)
"""

ELASTIC = """
run(func)
KerasState(model, optimizer=None, **kwargs)
CommitStateCallback(state, batches_per_commit=1)
UpdateBatchStateCallback(state)
UpdateEpochStateCallback(state)
"""

TENSORFLOW_ELASTIC = """
run(func)
TensorFlowKerasState(model, optimizer=None, backend=None, **kwargs)
TensorFlowState(variables=None, session=None, **kwargs)
"""

RUNNER = """
run(func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, slots=None, \
reset_limit=None, cooldown_range=None, hosts=None, hostfile=None, host_discovery_script=None, \
start_timeout=None, ssh_port=None, ssh_identity_file=None, disable_cache=None, \
output_filename=None, verbose=None, use_gloo=None, use_mpi=None, mpi_args=None, \
network_interface=None, network_interfaces=None, executable=None, np=None, min_np=None, \
max_np=None)
"""

TABLES = {
    "horovod.tensorflow": TENSORFLOW,
    "horovod.tensorflow.mpi_ops": MPI_OPS,
    "horovod.tensorflow.keras": TENSORFLOW_KERAS,
    "horovod.keras": KERAS,
    "horovod.keras.callbacks": CALLBACKS,
    "horovod.tensorflow.keras.callbacks": CALLBACKS,
    "horovod.keras.elastic": ELASTIC,
    "horovod.tensorflow.keras.elastic": ELASTIC,
    "horovod.tensorflow.elastic": TENSORFLOW_ELASTIC,
    "horovod": RUNNER,
}

NAMES = {
    "horovod.tensorflow": "Average Sum Min Max Product Compression ProcessSet global_process_set "
    "add_process_set remove_process_set vars_to_refs refs_to_vars check_extension gpu_available "
    "split_list mpi_ops elastic keras Adasum",
    "horovod.tensorflow.compression": "Compression Compressor NoneCompressor FP16Compressor",
    "horovod.tensorflow.keras": "init shutdown is_initialized size rank local_rank cross_rank "
    "mpi_built gloo_built nccl_built Average Sum Compression ProcessSet global_process_set "
    "add_process_set remove_process_set callbacks elastic start_timeline stop_timeline",
    "horovod.keras": "init rank size local_size Average Sum Adasum Compression global_process_set "
    "callbacks elastic",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt "
    "HorovodVersionMismatchError",
    "horovod.common.elastic": "State ObjectState run_fn",
    "horovod.common.process_sets": "ProcessSet global_process_set add_process_set "
    "remove_process_set",
    "horovod.common.util": "check_extension gpu_available split_list check_num_rank_power_of_2",
}

PROGRAM = """
import importlib, inspect, json, sys
from hvd_keras import compat
compat.install()
import horovod.tensorflow as hvd
named = {id(hvd.global_process_set): "PS", id(hvd.Compression.none): "C",
         id(hvd.Average): "Average", id(hvd.Sum): "Sum"}
def text(function):
    parts = []
    for p in inspect.signature(function).parameters.values():
        default = named.get(id(p.default), repr(p.default))
        if p.kind is p.KEYWORD_ONLY:
            continue  # further ones of our own
        if p.kind is p.VAR_KEYWORD:
            parts.append("**" + p.name)
        else:
            parts.append(p.name if p.default is p.empty else f"{p.name}={default}")
    return ", ".join(parts)
tables, names = json.load(sys.stdin)
found = {}
for module, functions in tables.items():
    for function in functions:
        found[f"{module}.{function}"] = text(getattr(importlib.import_module(module), function))
missing = [f"{m}.{n}" for m, ns in names.items() for n in ns.split()
           if not hasattr(importlib.import_module(m), n)]
def where(module, name):
    return str(getattr(importlib.import_module(module), name, None))
newer = {
    f"{module}.{name}": (where(f"horovod.{module}", name), where(f"hvd_keras.{place}", name))
    for module, name, place in [
        ("tensorflow", "SyncBatchNormalization", "keras"),
        ("tensorflow.sync_batch_norm", "SyncBatchNormalization", "keras"),
        ("keras.callbacks", "BestModelCheckpoint", "keras.callbacks"),
        ("tensorflow.keras.callbacks", "BestModelCheckpoint", "keras.callbacks"),
    ]
}
print("RESULT" + json.dumps([found, missing, newer]))
"""


@pytest.fixture(scope="module")
def found():
    import json

    tables = {
        module: [line.partition("(")[0] for line in table.split("\n") if line]
        for module, table in TABLES.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([tables, NAMES]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("RESULT")[1])


@pytest.mark.parametrize("module", TABLES)
def test_signatures(module, found):
    for line in TABLES[module].strip().split("\n"):
        if line:
            name, _, arguments = line.partition("(")
            assert found[0][f"{module}.{name}"] == arguments.removesuffix(")"), f"{module}.{name}"


def test_wrong_arguments_are_told_of_the_function():
    program = """
import horovod.keras as hvd
for given, options in ((), {}), ((1,), {"backward_passes_per_step": 2}):
    try:
        hvd.DistributedOptimizer(*given, **options)
    except TypeError as error:
        print("RESULT", error)
"""
    done = subprocess.run(
        [sys.executable, "-m", "hvd_keras.compat", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert found == [
        "RESULT DistributedOptimizer() missing a required argument: 'optimizer'",
        "RESULT DistributedOptimizer() got an unexpected keyword argument "
        "'backward_passes_per_step'",
    ]


def test_names(found):
    assert found[1] == []


def test_names_that_hvd_keras_may_have(found):
    assert all(pair[0] == pair[1] for pair in found[2].values()), found[2]
