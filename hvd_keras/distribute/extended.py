"""What TensorFlow asks of a strategy, by means of collectives of the ranks.

One replica per process makes it short. A value of a replica is a plain tensor, so ``run`` returns
what the function returns. Cross-replica context differs from replica context in nothing but what
TensorFlow allows there, so no code has to change threads or merge calls (``_use_merge_call``), and
a collective can be called in a ``tf.cond``, if all ranks take the same branch.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from hvd_keras import op_calls
from hvd_keras.distribute import datasets, variables
from hvd_keras.distribute.ranks import Ranks
from hvd_keras.distribute.replica import Replica

__all__ = ["Extended"]

_REDUCTIONS = {
    tf.distribute.ReduceOp.SUM: op_calls.Sum,
    tf.distribute.ReduceOp.MEAN: op_calls.Average,
}


class Extended(tf.compat.v1.distribute.StrategyExtended):
    """``strategy.extended``.

    Attributes:
        ranks: the ranks, and their collectives.
        compression, sparse_as_dense: of gradients, see ``hvd.Strategy``.
        cluster_resolver: what training scripts ask who they are.
    """

    def __init__(
        self, strategy: Any, ranks: Ranks, compression: Any, sparse_as_dense: bool
    ) -> None:
        super().__init__(strategy)
        self.ranks = ranks
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        workers = [f"rank{rank}:0" for rank in ranks.process_set.ranks]
        self.cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": workers}), task_type="worker", task_id=ranks.rank
        )

    # Who and where

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.ranks.size

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self.ranks.rank + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self.ranks.rank

    @property
    def worker_devices(self) -> tuple[str, ...]:
        gpus = tf.config.list_logical_devices("GPU")
        return (gpus[0].name if gpus else "/device:CPU:0",)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return self.worker_devices

    def non_slot_devices(self, var_list: Any) -> tuple[str, ...]:
        del var_list
        return self.worker_devices

    def _in_multi_worker_mode(self) -> bool:
        return self.ranks.size > 1

    @property
    def experimental_between_graph(self) -> bool:
        return True

    @property
    def experimental_should_init(self) -> bool:
        return True

    @property
    def should_checkpoint(self) -> bool:
        return self.ranks.is_first

    @property
    def should_save_summary(self) -> bool:
        return self.ranks.is_first

    @property
    def _global_batch_size(self) -> bool:
        return True

    def _use_merge_call(self) -> bool:
        return False

    # Variables

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        kwargs.pop("colocate_with", None)  # one device
        return variables.create(self._container_strategy(), self.ranks, next_creator, kwargs)

    def read_var(self, v: Any) -> tf.Tensor:
        return tf.identity(v)

    def value_container(self, value: Any) -> Any:
        handle = value if hasattr(value, "_distributed_container") else None
        handle = getattr(value, "handle", None) if handle is None else handle
        container = getattr(handle, "_distributed_container", lambda: None)()
        return value if container is None else container

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        return self._update_non_slot(var, fn, (_component(var), *args), kwargs, group)

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        del colocate_with
        with distribute_lib.UpdateContext(0):
            result = fn(*args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    def _replica_ctx_update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        del group
        return fn(_component(var), *args, **(kwargs or {}))

    # Data

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        _check_replication_mode(options)
        return datasets.distribute(dataset, self.ranks)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        _check_replication_mode(options)
        return datasets.from_function(dataset_fn, self.ranks)

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        context = tf.distribute.experimental.ValueContext(self.ranks.rank, self.ranks.size)
        return value_fn(context)

    # Calls and collectives

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        kwargs = kwargs or {}
        replica = Replica(self._container_strategy(), self.ranks, (args, kwargs))
        with replica:
            result = fn(*args, **kwargs)
            replica.finish()
        return result

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        return self._batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        del options
        values = [_reducible(value) for value, _ in value_destination_pairs]
        return self.ranks.reduce(values, _REDUCTIONS[reduce_op], "strategy.reduce")

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        del options
        values = [_reducible(part) for part in tf.nest.flatten(value)]
        reduced = self.ranks.reduce(values, _REDUCTIONS[reduce_op], "strategy.all_reduce")
        return tf.nest.pack_sequence_as(value, reduced)

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: Any, options: Any
    ) -> tf.Tensor:
        del destinations, options
        axis = int(tf.get_static_value(axis) if tf.is_tensor(axis) else axis)
        return self.ranks.gather(_reducible(value), axis, "strategy.gather")

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        del destinations
        if isinstance(tensor, (int, float)):
            return tensor  # of the program: the same everywhere, and of no type yet
        return self.ranks.broadcast(tf.convert_to_tensor(tensor), "strategy.broadcast")

    def _local_results(self, val: Any) -> tuple[Any, ...]:
        if isinstance(val, tf.distribute.DistributedValues):
            return tuple(val._values)
        return (val,)


def _component(variable: Any) -> Any:
    """Returns the variable that TensorFlow's operations work on."""
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable._values[0]
    return variable


def _reducible(value: Any) -> Any:
    if isinstance(value, tf.IndexedSlices):
        shape = value.dense_shape
        return tf.IndexedSlices(
            tf.convert_to_tensor(value.values),
            tf.convert_to_tensor(value.indices),
            None if shape is None else tf.convert_to_tensor(shape),
        )
    return tf.convert_to_tensor(_component(value))


def _check_replication_mode(options: Any) -> None:
    mode = getattr(options, "experimental_replication_mode", None)
    if mode == tf.distribute.InputReplicationMode.PER_REPLICA:
        raise NotImplementedError(
            "hvd.Strategy has one replica in each process, and so one input pipeline; leave out "
            "experimental_replication_mode=PER_REPLICA, which means the same here"
        )
