"""What distributed optimizers have in common, whichever Keras they are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from hvd_keras.gradients import Reduction, reduce_gradients
from hvd_keras.keras import _versions
from hvd_keras.process_sets import ProcessSet

__all__ = ["DistributedMixin", "as_layers", "distributed_in", "is_distributed", "subclass_of"]


def as_layers(local_layers: Any) -> list[Any]:
    """Returns one layer, several or None as a list.

    Raises:
        TypeError: there is something else among them.
    """
    if local_layers is None:
        return []
    classes = _versions.both("layers.Layer")
    layers = [local_layers] if isinstance(local_layers, classes) else list(local_layers)
    for layer in layers:
        if not isinstance(layer, classes):
            raise TypeError(f"local_layers has a {type(layer).__name__}; expected Keras layers")
    return layers


class _Local:
    """What an optimizer leaves to each rank: variables, and all of some layers."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.layers: list[Any] = []

    def all(self) -> list[Any]:
        # Layers may have been built since.
        return [*self.variables, *(v for layer in self.layers for v in layer.trainable_variables)]


def is_distributed(optimizer: Any) -> bool:
    """Returns whether the optimizer, or the one that it scales the loss for, is distributed."""
    return distributed_in(optimizer) is not None


def distributed_in(optimizer: Any) -> DistributedMixin | None:
    """Returns the distributed optimizer that this is, or that it scales the loss for."""
    optimizer = _versions.innermost(optimizer)
    return optimizer if isinstance(optimizer, DistributedMixin) else None


if TYPE_CHECKING:
    _Optimizer: Any = object
else:
    _Optimizer = object  # the optimizer's own class is the next base


class DistributedMixin(_Optimizer):
    """A distributed optimizer's own attributes; its class has them for all its objects."""

    _hvd_reduction: Reduction
    _hvd_local_or_none: _Local | None = None

    @property
    def _hvd_local(self) -> _Local:
        # Not made by __init__: Keras makes copies of the optimizer with from_config.
        if self._hvd_local_or_none is None:
            object.__setattr__(self, "_hvd_local_or_none", _Local())
        return cast(_Local, self._hvd_local_or_none)

    def register_local_var(self, var: Any) -> None:
        """Leaves the variable to each rank: its gradients are not reduced."""
        self._hvd_local.variables.append(var)

    @property
    def hvd_local_variables(self) -> list[Any]:
        """The variables that are left to each rank."""
        return self._hvd_local.all()

    @property
    def process_set(self) -> ProcessSet:
        """The ranks among which gradients are reduced."""
        return self._hvd_reduction.process_set

    @property
    def scale_local_gradients(self) -> bool:
        """Whether the gradients of the variables that are left to each rank are divided by the
        number of ranks."""
        return self._hvd_reduction.scale_local_gradients

    def _hvd_reduced_by_ranks(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return reduce_gradients(grads, variables, self._hvd_reduction, self._hvd_local.all())


def subclass_of(
    base: type, mixin: type[DistributedMixin], keras: Any, attributes: dict[str, Any]
) -> type:
    """Returns the distributed subclass of an optimizer's class.

    Keras saves an optimizer under its class's registered or public name. The subclass has to give
    the same one, or the saved model would not load without this package.

    Args:
        base: the class.
        mixin: what is different in the subclass.
        keras: the module of the Keras that the class is of.
        attributes: of the subclass.
    """
    attributes = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        **attributes,
    }
    subclass = type(base.__name__, (mixin, base), attributes)
    package, separator, registered = keras.saving.get_registered_name(base).partition(">")
    if separator:
        register = keras.saving.register_keras_serializable(package, registered)
        register(subclass)
        register(base)  # loading gives the base class, as before
    return subclass
