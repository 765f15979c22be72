"""SyncBatchNormalization."""

from typing import Any

from hvd_keras.compat import forwarding


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":
        return forwarding.find(name, forwarding.KERAS)
    raise forwarding.missing_attribute(__name__, name)
