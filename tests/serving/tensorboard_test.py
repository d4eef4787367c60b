"""What Keras' callback writes about models with our layers for TensorBoard.

It needs TensorFlow, and the package tensorboard, which TensorFlow no longer
installs by itself and the extra "test" does.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_rfa.models import document_classifier

random = np.random.default_rng(0)
IDS = random.integers(1, 20, (8, 10)).astype("int32")
CLASSES = IDS[:, 0] % 2


def events(directory):
    """Yields tag, step and value of all that was written."""
    for path in directory.glob("events.*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                yield value.tag, event.step, tf.make_ndarray(value.tensor)


def test_losses_and_histograms_of_weights(tmp_path):
    model = document_classifier(
        20,
        2,
        num_layers=1,
        hidden_dim=8,
        num_heads=2,
        intermediate_dim=16,
        attention="rfa_gated",
        attention_options={"num_features": 8, "seed": 1},
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    callback = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1)
    losses = model.fit(
        IDS, CLASSES, epochs=2, verbose=0, callbacks=[callback]
    ).history["loss"]
    written = list(events(tmp_path / "train"))
    scalars = [x for tag, _, x in written if tag == "epoch_loss"]
    np.testing.assert_allclose(scalars, losses, rtol=1e-6)
    histograms = {
        tag: x for tag, step, x in written if step == 1 and x.ndim == 2
    }
    sigma = model.get_layer("block_0").attention.features.sigma
    (name,) = (tag for tag in histograms if "attention/features/sigma" in tag)
    low, high, counts = histograms[name].T
    values = keras.ops.convert_to_numpy(sigma)
    assert counts.sum() == values.size
    np.testing.assert_allclose(
        (low.min(), high.max()), (values.min(), values.max()), rtol=1e-6
    )
