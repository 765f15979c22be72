"""``hvd.Strategy``: a tf.distribute strategy whose replicas are the ranks."""

from hvd_keras.distribute.strategy import Strategy

__all__ = ["Strategy"]
