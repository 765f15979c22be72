"""Holds the package ``horovod``; see hvd_keras.compat."""
