"""Feature maps such as a user writes, for the tests."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="tests")
def squared_relu(x, projection):
    projected = ops.einsum("bthd,hDd->bthD", x, projection)
    return ops.square(ops.relu(projected)) + 0.01


@keras.saving.register_keras_serializable(package="tests")
class LearnedFeatures(keras.layers.Layer):
    """exp(U W x), with a trainable U for each head."""

    def build(self, x_shape, projection_shape):
        heads, features = projection_shape[:2]
        self.kernel = self.add_weight(
            name="kernel", shape=(heads, features, 6), initializer="normal"
        )

    def call(self, x, projection):
        projected = ops.einsum("bthd,hDd->bthD", x, projection)
        return ops.exp(ops.einsum("bthD,hDm->bthm", projected, self.kernel))
