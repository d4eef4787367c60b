"""Classifiers that read in windows, where no length is known."""

import keras
import numpy as np
import tensorflow as tf
from exports import (
    CLASSES,
    TEXTS,
    ask,
    ids_request,
    make_classifier,
    probabilities,
)

from keras_rfa.export import export_classifier
from keras_rfa.models import document_classifier
from keras_rfa.text import ByteTokenizer, bucket_batches


def test_equal_answers_in_a_process_without_keras(tmp_path):
    tokenizer = ByteTokenizer()
    model = make_classifier(257, "rfa_gated", causal=True, window=100)
    path = tmp_path / "exported"
    export_classifier(model, tokenizer, CLASSES, path)
    ids = np.asarray(tokenizer(TEXTS))  # three windows, and a text of no token
    requests = [{"text": TEXTS}, ids_request(ids), ids_request(ids[:1, :7])]
    answers = ask(path, requests)
    for answer, batch in zip(answers, [ids, ids, ids[:1, :7]], strict=True):
        expected = probabilities(model, batch)
        np.testing.assert_allclose(answer[0], expected, atol=1e-5)


def test_training_on_buckets():
    model = document_classifier(
        20,
        2,
        num_layers=1,
        hidden_dim=4,
        num_heads=1,
        intermediate_dim=4,
        attention="linear",
        causal=True,
        window=4,
    )
    documents = [(np.arange(1, t), t % 2) for t in (3, 9, 12, 19)]
    dataset = tf.data.Dataset.from_generator(
        lambda: documents,
        output_signature=(
            tf.TensorSpec((None,), tf.int32),
            tf.TensorSpec((), tf.int32),
        ),
    )
    batches = bucket_batches(dataset, [8, 18], tokens_per_batch=18)
    model.compile(
        "sgd",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
    )
    before = model.get_weights()
    history = model.fit(batches, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert np.abs(model.get_weights()[0] - before[0]).max() > 0
