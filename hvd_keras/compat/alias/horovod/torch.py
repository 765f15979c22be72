"""Not carried over: importing it says so."""

from hvd_keras.compat.forwarding import NOT_CARRIED_OVER

raise ModuleNotFoundError(f"horovod.torch: {NOT_CARRIED_OVER['torch']}", name="horovod.torch")
