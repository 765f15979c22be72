"""``sparkdl.horovod.tensorflow``."""
