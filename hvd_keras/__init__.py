"""hvd_keras: data-parallel training for Keras and TensorFlow.

``import hvd_keras as hvd`` imports nothing but this file; each name is imported when it is first
used, so that the launcher does not wait for TensorFlow. The names are listed in ``__init__.pyi``.
"""

import lazy_loader as _lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)
