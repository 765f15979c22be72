"""Names of the package; lazy_loader reads them from here."""

from . import keras as keras
from . import tensorflow as tensorflow
from .collectives import (
    Adasum as Adasum,
)
from .collectives import (
    Average as Average,
)
from .collectives import (
    Max as Max,
)
from .collectives import (
    Min as Min,
)
from .collectives import (
    Product as Product,
)
from .collectives import (
    Sum as Sum,
)
from .collectives import (
    allgather as allgather,
)
from .collectives import (
    allreduce as allreduce,
)
from .collectives import (
    alltoall as alltoall,
)
from .collectives import (
    barrier as barrier,
)
from .collectives import (
    broadcast as broadcast,
)
from .collectives import (
    grouped_allgather as grouped_allgather,
)
from .collectives import (
    grouped_allreduce as grouped_allreduce,
)
from .collectives import (
    grouped_reducescatter as grouped_reducescatter,
)
from .collectives import (
    join as join,
)
from .collectives import (
    local_rank_op as local_rank_op,
)
from .collectives import (
    local_size_op as local_size_op,
)
from .collectives import (
    process_set_included_op as process_set_included_op,
)
from .collectives import (
    rank_op as rank_op,
)
from .collectives import (
    reducescatter as reducescatter,
)
from .collectives import (
    size_op as size_op,
)
from .compression import Compression as Compression
from .diagnostics.flight_recorder import (
    dump_flight_recorder as dump_flight_recorder,
)
from .diagnostics.stats import stats as stats
from .diagnostics.timeline import (
    start_timeline as start_timeline,
)
from .diagnostics.timeline import (
    stop_timeline as stop_timeline,
)
from .distribute import Strategy as Strategy
from .errors import (
    LibraryError as LibraryError,
)
from .errors import (
    NotInitializedError as NotInitializedError,
)
from .keras import callbacks as callbacks
from .keras.data import shard as shard
from .keras.evaluation import (
    evaluate as evaluate,
)
from .keras.evaluation import (
    predict as predict,
)
from .keras.optimizer import (
    DistributedOptimizer as DistributedOptimizer,
)
from .keras.optimizer import (
    PartialDistributedOptimizer as PartialDistributedOptimizer,
)
from .keras.saving import load_model as load_model
from .keras.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
from .objects import (
    allgather_object as allgather_object,
)
from .objects import (
    broadcast_ as broadcast_,
)
from .objects import (
    broadcast_object as broadcast_object,
)
from .objects import (
    broadcast_object_fn as broadcast_object_fn,
)
from .objects import (
    broadcast_variables as broadcast_variables,
)
from .process_sets import (
    ProcessSet as ProcessSet,
)
from .process_sets import (
    add_process_set as add_process_set,
)
from .process_sets import (
    global_process_set as global_process_set,
)
from .process_sets import (
    remove_process_set as remove_process_set,
)
from .tensorflow.tape import (
    DistributedGradientTape as DistributedGradientTape,
)
from .tensorflow.tape import (
    PartialDistributedGradientTape as PartialDistributedGradientTape,
)
from .world import (
    cross_rank as cross_rank,
)
from .world import (
    cross_size as cross_size,
)
from .world import (
    init as init,
)
from .world import (
    is_initialized as is_initialized,
)
from .world import (
    local_rank as local_rank,
)
from .world import (
    local_size as local_size,
)
from .world import (
    rank as rank,
)
from .world import (
    shutdown as shutdown,
)
from .world import (
    size as size,
)

__version__: str
