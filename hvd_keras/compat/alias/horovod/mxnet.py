"""Not carried over: importing it says so."""

from hvd_keras.compat.forwarding import NOT_CARRIED_OVER

raise ModuleNotFoundError(f"horovod.mxnet: {NOT_CARRIED_OVER['mxnet']}", name="horovod.mxnet")
