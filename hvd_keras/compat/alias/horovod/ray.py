"""Not carried over: importing it says so."""

from hvd_keras.compat.forwarding import NOT_CARRIED_OVER

raise ModuleNotFoundError(f"horovod.ray: {NOT_CARRIED_OVER['ray']}", name="horovod.ray")
