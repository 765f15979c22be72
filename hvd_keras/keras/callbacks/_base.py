"""The base class of the callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvd_keras.keras import _versions

__all__ = ["Callback"]

if TYPE_CHECKING:
    _Callback: Any = object
else:
    _Callback = _versions.default_keras().callbacks.Callback


class Callback(_Callback):
    """A callback for ``fit`` of either Keras: of the class that ``tf.keras`` has.

    Neither Keras insists on its own class. Keras 2 asks a callback which hooks it has.
    """

    def _implements_train_batch_hooks(self) -> bool:
        return self._hvd_overrides("batch", "train_batch")

    def _implements_test_batch_hooks(self) -> bool:
        return self._hvd_overrides("test_batch")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._hvd_overrides("predict_batch")

    def _hvd_overrides(self, *events: str) -> bool:
        for name in [f"on_{event}_{end}" for event in events for end in ("begin", "end")]:
            hook = getattr(self, name)
            if getattr(hook, "__func__", hook) is not getattr(_Callback, name):
                return True
        return False
