"""What is trained and averaged: models for ``fit``, and the shapes of well-known models' gradients.

The models are built with whatever Keras a backend works with, and trained on noise: how long a step
takes does not depend on what is in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]
CLASSES = 10
TOKENS, WORDS, WIDTH = 32, 1000, 64  # of the transformer


def mlp(keras: Any) -> Any:
    """784-512-512-10, 0.67 M parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((784,)),
            layers.Dense(512, activation="relu"),
            layers.Dense(512, activation="relu"),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def cnn(keras: Any) -> Any:
    """Two convolutions and two dense layers for images of 28 x 28, 1.2 M parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def transformer(keras: Any) -> Any:
    """An encoder of two layers of width 64 over 32 tokens; 0.16 M parameters, some sparse."""
    layers = keras.layers
    tokens = layers.Input((TOKENS,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(tokens)
    for _ in range(2):
        attention = layers.MultiHeadAttention(num_heads=4, key_dim=WIDTH // 4)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, attention]))
        dense = layers.Dense(4 * WIDTH, activation="relu")(x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(WIDTH)(dense)]))
    pooled = layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, layers.Dense(CLASSES, activation="softmax")(pooled))


@dataclass(frozen=True)
class Training:
    """A model, the batch of each rank, and how many steps are timed together."""

    build: Callable[[Any], Any]
    batch: int
    steps: int

    def data(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(rank)
        if self.build is transformer:
            x = random.integers(0, WORDS, (self.batch, TOKENS)).astype(np.int32)
        else:
            shape = (784,) if self.build is mlp else (28, 28, 1)
            x = random.random((self.batch, *shape), np.float32)
        return x, random.integers(0, CLASSES, self.batch).astype(np.int32)


TRAININGS = {
    "MLP": Training(mlp, batch=128, steps=60),
    "CNN": Training(cnn, batch=64, steps=12),
    "transformer": Training(transformer, batch=32, steps=40),
}


def resnet50_shapes() -> list[Shape]:
    """The 161 trainable variables of ResNet-50, whose convolutions have no bias: 25.6 M numbers."""
    shapes: list[Shape] = []

    def convolution(size: int, inputs: int, outputs: int) -> None:
        shapes.extend([(size, size, inputs, outputs), (outputs,), (outputs,)])  # and batch norm

    convolution(7, 3, 64)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(1, inputs, width)
            convolution(3, width, width)
            convolution(1, width, 4 * width)
            if block == 0:
                convolution(1, inputs, 4 * width)
            inputs = 4 * width
    return [*shapes, (inputs, 1000), (1000,)]


def bert_base_shapes() -> list[Shape]:
    """The 199 variables of BERT-base: 109.5 M numbers."""
    width, inner = 768, 3072
    norm: list[Shape] = [(width,), (width,)]
    layer: list[Shape] = [(width, width), (width,)] * 4 + norm
    layer += [(width, inner), (inner,), (inner, width), (width,)] + norm
    embeddings: list[Shape] = [(30522, width), (512, width), (2, width)] + norm
    return [*embeddings, *(layer * 12), (width, width), (width,)]


GRADIENT_SETS = {"ResNet-50": resnet50_shapes, "BERT-base": bert_base_shapes}


def nbytes(shapes: list[Shape]) -> list[int]:
    """The size of each as float32."""
    return [4 * int(np.prod(shape)) for shape in shapes]
