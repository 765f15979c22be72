"""Starting the ranks of a job: the ``hvdrun`` command, and :func:`launch` for programs.

Nothing here imports TensorFlow, Keras or NumPy.
"""

from hvd_keras.launch.errors import LaunchError
from hvd_keras.launch.job import JobResult, RankResult
from hvd_keras.launch.local import RunningJob, launch, start

__all__ = ["JobResult", "LaunchError", "RankResult", "RunningJob", "launch", "start"]
