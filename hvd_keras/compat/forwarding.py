"""Functions with Horovod's signature that call those of hvd_keras with the same name."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from hvd_keras.compat.errors import translated

__all__ = ["find", "forward", "missing_attribute"]

TENSORFLOW = ("hvd_keras.tensorflow", "hvd_keras", "hvd_keras.collectives", "hvd_keras.objects")
KERAS = ("hvd_keras.keras", *TENSORFLOW)
_OTHERS = (
    "hvd_keras.process_sets",
    "hvd_keras.world",
    "hvd_keras.op_calls",
    "hvd_keras.tensorflow.hooks",
    "hvd_keras.tensorflow.tape",
    "hvd_keras.keras.optimizer",
    "hvd_keras.keras.saving",
    "hvd_keras.keras.sync_batch_norm",
)

#: Names of Horovod that are not carried over, and what to use. docs/migrating.md lists them.
NOT_CARRIED_OVER = {
    "torch": "hvd_keras trains TensorFlow and Keras models only; for PyTorch use torch.distributed",
    "mxnet": "MXNet is no longer developed; hvd_keras trains TensorFlow and Keras models only",
    "run_elastic": "the number of ranks is fixed; horovod.spark.run starts it",
    "KerasEstimator": "estimators are not carried over; horovod.spark.run runs a training function",
    "ElasticRayExecutor": "the number of ranks is fixed; RayExecutor starts them",
    "BaseHorovodWorker": "the workers are RayExecutor's own; pass executable_cls to start()",
    "ray_logger": "the function prints, and Ray shows it, or calls hvd_keras.runner.log_to_driver",
    "compute_service": "the tf.data service helper is not carried over; use tf.data.experimental."
    "service directly, or hvd_keras.shard(dataset)",
    "compute_worker": "the tf.data service helper is not carried over; use tf.data.experimental."
    "service directly, or hvd_keras.shard(dataset)",
    "MPI_LIB": "there is no MPI library; the functions of the module call hvd_keras",
    "_basics": "call the functions of the module: rank(), size() ...",
    "_load_library": "the library is loaded when it is first needed",
    "LocalGradientAggregationHelper": "pass backward_passes_per_step to DistributedOptimizer",
    "LocalGradientAggregationHelperEager": "pass backward_passes_per_step to DistributedOptimizer",
}


def find(name: str, places: Sequence[str]) -> Any:
    """Returns what hvd_keras has under this name; raises AttributeError where it has not."""
    for place in (*places, *_OTHERS):
        try:
            module = importlib.import_module(place)
            return getattr(module, name)
        except (AttributeError, ModuleNotFoundError):
            continue
    error = AttributeError(f"this release of hvd_keras has no {name}")
    error.name = name
    raise error


@functools.cache
def _target(name: str, places: tuple[str, ...]) -> tuple[Any, frozenset[str]]:
    """The function and the names of its arguments; looking for them takes as long as a call."""
    function = find(name, places)
    return function, frozenset(inspect.signature(function).parameters)


def missing_attribute(module: str, name: str) -> AttributeError:
    """Returns the error for a name that the alias does not have."""
    remedy = NOT_CARRIED_OVER.get(
        name,
        "the alias of hvd_keras has Horovod's public names for TensorFlow and Keras, as far as "
        "this release supports them; hvd_keras's docs/migrating.md lists what is left out",
    )
    error = AttributeError(f"module {module!r} has no attribute {name!r}: {remedy}")
    error.name = name
    return error


def forward(
    places: Sequence[str] = TENSORFLOW, name: str | None = None, ignored: Sequence[str] = ()
) -> Callable[[Callable], Callable]:
    """Decorates a function without a body, whose signature is Horovod's.

    A call goes to the function of the same name in hvd_keras, with the arguments that are given
    and are not the default, by name; errors become those that Horovod scripts expect.

    Args:
        places: modules to look for the function in, the first that has it.
        name: its name there, where it differs.
        ignored: arguments that make no difference here.
    """

    def decorate(stub: Callable) -> Callable:
        signature = inspect.signature(stub)

        @functools.wraps(stub)
        def function(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:  # which does not say of what
                raise TypeError(f"{stub.__name__}() {error}") from None
            given = _given(signature, bound.arguments)
            with translated():
                target, accepted = _target(name or stub.__name__, tuple(places))
                for argument in [a for a in given if a not in accepted]:
                    if argument not in ignored:
                        raise NotImplementedError(
                            f"hvd_keras's {target.__name__} has no {argument}=, which was given as "
                            f"{given[argument]!r}; leave it out"
                        )
                    del given[argument]
                return target(**given)

        import tensorflow as tf  # late: errors are looked up without it

        return tf.autograph.experimental.do_not_convert(function)

    return decorate


def _given(signature: inspect.Signature, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that differ from their defaults; ``**kwargs`` are laid out flat."""
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given.update(value)
        elif value is not parameter.default:
            given[name] = value
    return given
