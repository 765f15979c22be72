"""``horovod.tensorflow.elastic`` for jobs whose ranks are fixed; see hvd_keras.compat.elastic."""

from hvd_keras.compat.elastic import ObjectState, run
from hvd_keras.compat.elastic_tensorflow import TensorFlowKerasState, TensorFlowState

__all__ = ["ObjectState", "TensorFlowKerasState", "TensorFlowState", "run"]
