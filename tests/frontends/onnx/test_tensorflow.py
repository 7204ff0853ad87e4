"""Keras models, written by tf2onnx: imported, they agree with ONNX Runtime.

TensorFlow takes 1.3 GB and is no requirement; with `pip install tensorflow-cpu tf2onnx` these run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="TensorFlow is not installed: 1.3 GB, see the file")
pytest.importorskip("tf2onnx")

import tensorflow as tf
import tf2onnx

from tests.frontends.onnx.runtime import assert_agrees

keras: Any = tf.keras
layers: Any = tf.keras.layers


def convolutional() -> Any:
    x = start = keras.Input((32, 32, 3), batch_size=1)
    x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
    x = layers.ReLU(6)(layers.BatchNormalization()(x))
    x = layers.MaxPooling2D()(layers.DepthwiseConv2D(3, padding="same")(x))
    x = layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="swish")(x)
    return keras.Model(start, layers.Dense(5)(layers.GlobalAveragePooling2D()(x)))


def attention() -> Any:
    x = start = keras.Input((7, 16), batch_size=2)
    x = layers.LayerNormalization()(x)
    x = layers.MultiHeadAttention(4, 4)(x, x) + start
    y = layers.Dense(32, activation="swish")(layers.LayerNormalization()(x))
    return keras.Model(start, x + layers.Dense(16)(y))


def recurrent() -> Any:
    x = start = keras.Input((6, 8), batch_size=2)
    x = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(x)
    return keras.Model(start, layers.Dense(3)(layers.GRU(5)(x)))


@pytest.mark.parametrize("make", [convolutional, attention, recurrent])
def test_a_keras_model_agrees(make: Callable[[], Any], tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = make()
    spec = [tf.TensorSpec(model.inputs[0].shape, tf.float32, name="x")]
    function = tf.function(lambda x: model(x, training=False), input_signature=spec)
    path = tmp_path / "model.onnx"
    tf2onnx.convert.from_function(function, spec, opset=18, output_path=str(path))
    x = np.random.default_rng(0).standard_normal(model.inputs[0].shape).astype(np.float32)
    assert_agrees(path, {"x": x})
