"""Compression: send tensors in 16 bits, compute with them in their own type.

A compressor is any object with ``compress(tensor) -> (tensor, context)`` and
``decompress(tensor, context) -> tensor``; own ones may be passed wherever ``compression=`` is
accepted. Every rank must use the same one.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["Compression", "Compressor"]


class Compressor:
    """What ``compression=`` accepts."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor to send and what ``decompress`` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Returns the received tensor in the type of the original one."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        return tensor


class _CastCompressor(Compressor):
    """Sends float32 and float64 in a narrower type; other types as they are."""

    wire_dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        if tensor.dtype in (tf.float32, tf.float64):
            return tf.cast(tensor, cls.wire_dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        return tensor if context is None else tf.cast(tensor, context)


class FP16Compressor(_CastCompressor):
    """Sends float32 and float64 as float16: 11 bits of precision, at most 65504."""

    wire_dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends float32 and float64 as bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = tf.bfloat16


class Compression:
    """The compressors that come with the package. Sums are accumulated in float32 in any case."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
