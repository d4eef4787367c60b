"""Layers that carry their state from batch to batch by themselves."""

import keras
import numpy as np
from keras import ops

from keras_rfa.layers import RandomFeatureAttention, RandomProjectionPool
from keras_rfa.testing import as_numpy, assert_close, compiled, differentiated

HEADS, WIDTH = 2, 8
X = np.random.default_rng(0).normal(size=(3, 6, WIDTH)).astype("float32")


def attention(**arguments):
    arguments = {"num_features": 16, "seed": 1, **arguments}
    return RandomFeatureAttention(HEADS, 4, **arguments)


def stateful_model(**arguments):
    x = keras.Input(batch_shape=(3, 3, WIDTH))
    layer = attention(stateful=True, name="rfa", **arguments)
    model = keras.Model(x, layer(x, x, use_causal_mask=True))
    xla = keras.backend.backend() != "torch"
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=xla)
    return model, layer


def test_stateful_batches_continue_each_other():
    model, layer = stateful_model()
    expected = compiled(
        lambda x: layer(
            x,
            x,
            use_causal_mask=True,
            initial_state=layer.get_initial_state(3),
        )
    )(X)
    for _ in range(2):
        layer.reset_state()
        halves = [
            model.predict(half, batch_size=3, verbose=0)
            for half in (X[:, :3], X[:, 3:])
        ]
        assert_close("outputs", np.concatenate(halves, 1), expected)


def test_stateful_training_is_training_from_the_state_before():
    pool = RandomProjectionPool(HEADS, 16, 4, pool_size=1, seed=1)
    model, layer = stateful_model(projection_pool=pool)
    twin = attention(projection_pool=pool)
    twin.build(X.shape)
    twin.set_weights(
        [as_numpy(w) for w in layer.weights if "carried" not in w.path]
    )
    layer.reset_state()
    halves = np.concatenate([X[:, :3], X[:, 3:]])  # two batches
    model.fit(halves, 0 * halves, batch_size=3, shuffle=False, verbose=0)

    def loss(x, state):
        output, last = twin(
            x,
            x,
            use_causal_mask=True,
            initial_state=state,
            return_state=True,
        )
        return ops.mean(ops.square(output)), last

    step = compiled(differentiated(loss, twin.trainable_weights))
    state = as_numpy(twin.get_initial_state(3))
    for half in (X[:, :3], X[:, 3:]):
        state = {
            name: x if name == "indices" else x.astype("float32")
            for name, x in state.items()
        }
        _, state, _, gradients = step(half, state)
        for weight, gradient in zip(
            twin.trainable_weights, gradients, strict=True
        ):
            weight.assign(as_numpy(weight) - 0.1 * gradient)
        step = compiled(differentiated(loss, twin.trainable_weights))
    for a, b in zip(
        layer.trainable_weights, twin.trainable_weights, strict=True
    ):
        assert_close(a.path, as_numpy(a), as_numpy(b), 1e-5)
    carried = as_numpy(layer.carried_state.entries)
    assert_close("state", carried, state)


def test_stateful_training_keeps_its_matrices_until_the_next_reset():
    model, layer = stateful_model()
    entry = layer.carried_state.entries["indices"]
    drawn = set()
    for _ in range(4):
        layer.reset_state()
        indices = tuple(as_numpy(entry))
        drawn.add(indices)
        model.fit(X[:, :3], X[:, 3:], batch_size=3, epochs=2, verbose=0)
        assert tuple(as_numpy(entry)) == indices
    assert len(drawn) > 1


def test_files_do_not_hold_the_carried_state(tmp_path):
    model, _ = stateful_model()
    first = model.predict(X[:, :3], batch_size=3, verbose=0)
    second = model.predict(X[:, :3], batch_size=3, verbose=0)
    assert np.abs(first - second).max() > 1e-3
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("rfa").stateful
    actual = loaded.predict(X[:, :3], batch_size=3, verbose=0)
    assert_close("outputs", actual, first)
