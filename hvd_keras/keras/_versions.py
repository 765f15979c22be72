"""Keras 3 and Keras 2 side by side: whose an object is, and what the two call differently.

Keras 2 is the package ``tf_keras``, and an option: nothing here imports it. As long as the program
has not imported it either, by name or as ``tf.keras`` under ``TF_USE_LEGACY_KERAS=1``, there is
none of its objects to meet.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import keras
import tensorflow as tf

__all__ = [
    "both",
    "build",
    "default_keras",
    "innermost",
    "is_built",
    "is_keras2",
    "loss_scale_classes",
    "optimizer_classes",
    "optimizer_variables",
    "slots_of",
    "tf_keras",
]


def tf_keras() -> Any:
    """Returns the module of Keras 2, or None if the program has not imported it."""
    module = sys.modules.get("tf_keras")
    return module if hasattr(module, "optimizers") else None  # else it is being imported


def default_keras() -> Any:
    """Returns the Keras that ``tf.keras`` is: Keras 2 under ``TF_USE_LEGACY_KERAS=1``."""
    if tf.keras.Model.__module__.split(".")[0] == "tf_keras":  # imports it, as the user wanted
        return tf_keras()
    return keras


def both(path: str) -> tuple[Any, ...]:
    """Returns the classes of this name ("layers.Layer"), for ``isinstance``.

    Where a Keras lacks the name, its class is left out.
    """
    found = []
    for module in (keras, tf_keras()):
        try:
            found.append(operator.attrgetter(path)(module))
        except AttributeError:
            continue
    return tuple(found)


def optimizer_classes() -> tuple[Any, ...]:
    """Returns the base classes of all optimizers; Keras 2 has two."""
    keras2 = tf_keras()
    return both("optimizers.Optimizer") + ((keras2.optimizers.legacy.Optimizer,) if keras2 else ())


def loss_scale_classes() -> tuple[Any, ...]:
    """Returns the classes of the optimizers that scale the loss for another one."""
    keras2 = tf_keras()
    mine = (keras.optimizers.LossScaleOptimizer,)
    return mine + ((keras2.mixed_precision.LossScaleOptimizer,) if keras2 else ())


def is_keras2(instance: Any) -> bool:
    """Returns whether a model, optimizer, layer or callback is one of Keras 2."""
    keras2 = tf_keras()
    if keras2 is None:
        return False
    legacy = keras2.optimizers.legacy.Optimizer
    kinds = (keras2.layers.Layer, keras2.optimizers.Optimizer, legacy, keras2.callbacks.Callback)
    return isinstance(instance, kinds)


def innermost(optimizer: Any) -> Any:
    """Returns the optimizer itself, or the one that it scales the loss for."""
    while isinstance(optimizer, loss_scale_classes()):
        optimizer = optimizer.inner_optimizer
    return optimizer


def is_built(optimizer: Any) -> bool:
    """Returns whether the optimizer has its slots."""
    if not is_keras2(optimizer):
        return optimizer.built
    optimizer = innermost(optimizer)
    if isinstance(optimizer, keras2_new_style()):
        return bool(getattr(optimizer, "_built", False))
    return bool(getattr(optimizer, "_hvd_has_slots", False)) or bool(optimizer.get_slot_names())


def build(optimizer: Any, variables: Any) -> None:
    """Makes the optimizer's slots for these variables."""
    if is_keras2(optimizer) and not isinstance(innermost(optimizer), keras2_new_style()):
        optimizer = innermost(optimizer)
        with tf.init_scope():
            optimizer._create_all_weights(variables)
        object.__setattr__(optimizer, "_hvd_has_slots", True)
    else:
        with tf.init_scope():
            optimizer.build(variables)


def keras2_new_style() -> Any:
    """Returns the base class of those optimizers of Keras 2 that are not in ``legacy``."""
    return tf_keras().optimizers.Optimizer


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Returns the variables that make up the optimizer's state, with its learning rate."""
    variables = optimizer.variables
    variables = list(variables() if callable(variables) else variables)
    if not is_keras2(optimizer):
        return variables
    # Keras 2 leaves out what it does not count as weights.
    loss_scale = getattr(optimizer, "_loss_scale", None)
    inner = innermost(optimizer)
    others = [
        getattr(loss_scale, "current_loss_scale", None),
        getattr(loss_scale, "counter", None),
        getattr(inner, "_learning_rate", None),
        *getattr(inner, "_hyper", {}).values(),
    ]
    known = {id(variable) for variable in variables}
    return variables + [v for v in others if isinstance(v, tf.Variable) and id(v) not in known]


def slots_of(optimizer: Any, variable: Any) -> list[Any]:
    """Returns the variables that the optimizer has for one of the model's."""
    if not is_keras2(optimizer):
        # Keras tells what a slot belongs to by its name alone.
        prefix = str(getattr(variable, "path", variable.name)).replace("/", "_") + "_"
        return [v for v in optimizer.variables if v.path.split("/")[-1].startswith(prefix)]
    optimizer = innermost(optimizer)
    if not isinstance(optimizer, keras2_new_style()):
        return [optimizer.get_slot(variable, name) for name in optimizer.get_slot_names()]
    ending = "/" + variable.name  # of m/dense/kernel:0
    return [v for v in optimizer_variables(optimizer) if v.name.endswith(ending)]
