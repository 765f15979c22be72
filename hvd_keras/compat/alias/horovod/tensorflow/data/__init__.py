"""Not carried over: importing it says so."""

from hvd_keras.compat.forwarding import NOT_CARRIED_OVER

raise ModuleNotFoundError(
    f"horovod.tensorflow.data: {NOT_CARRIED_OVER['compute_service']}",
    name="horovod.tensorflow.data",
)
