"""Train a classifier of long documents, measure it and export it.

    python -m pip install -e ".[examples]"
    python examples/classify_long_documents.py
    KERAS_BACKEND=jax python examples/classify_long_documents.py \\
        --data-dir my_documents --max-length 4096

Without `--data-dir` the documents are 25,000 film reviews, which take less
than ten minutes on two processor cores. Your own are a folder of text files
for each class. The program learns a vocabulary, trains a transformer with
linear-time attention, compares it on the test set with a bag of words, and
writes one folder:

    model.keras             the Keras model
    vocabulary.txt          the pieces of words (with `--tokenizer wordpiece`)
    exported/               a SavedModel that answers raw text
    results.json            all figures, and the options
    training.png, accuracy_by_length.png
"""

import argparse
import functools
import importlib
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from documents import (
    PARTS,
    Documents,
    make_batches,
    read_folders,
    read_reviews,
    tokenise,
)
from options import check_output, parse_options
from report import (
    DocumentCount,
    Progress,
    accuracy_by_length,
    in_words,
    peak_memory,
    plot_accuracy_by_length,
    plot_training,
    predict_from_words,
    print_accuracy,
    print_answers,
)

import keras_rfa
from keras_rfa.export import (
    clone_for_serving,
    export_classifier,
    new_directory,
)
from keras_rfa.text import (
    ByteTokenizer,
    WordpieceTokenizer,
    learn_vocabulary,
)

START = time.perf_counter()


def main() -> None:
    """Runs the program; the folder of outputs appears whole or not at all."""
    options = parse_options()
    if keras.backend.backend() not in ("tensorflow", "jax"):
        raise ValueError(
            "SavedModels are written from TensorFlow and JAX: set "
            "KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )
    if keras.backend.backend() == "jax":
        # TensorFlow only reads the documents. It would take all GPU memory.
        tf.config.set_visible_devices([], "GPU")
    check_output(options)
    # What is wrong with an option, or with an attention of one's own, is known
    # now rather than after the training.
    model = build_model(options, vocabulary_size=3, num_classes=2)
    model(np.array([[1, 2, 0]]))
    clone_for_serving(model)
    with new_directory(options.output_dir, overwrite=True) as directory:
        classify(options, pathlib.Path(directory))
    announce(f"Wrote {options.output_dir}")


def classify(options: argparse.Namespace, output: pathlib.Path) -> None:
    """Does all the work, and writes what comes of it to a folder."""
    announce("Read the documents")
    if options.data_dir is not None:
        corpus = read_folders(options.data_dir)
    else:
        corpus = read_reviews()
    sizes = {part: len(getattr(corpus, part).texts) for part in PARTS}
    print(f"  classes: {', '.join(corpus.class_names)}")
    print(f"  documents: {in_words(sizes)}; {in_words(corpus.counts)}")

    announce("Learn the vocabulary from the training documents")
    tokenizer = make_tokenizer(options, corpus.train.texts, output)
    print(f"  {tokenizer.vocabulary_size:,} different tokens")

    announce("Tokenise, and sort into batches of like length")
    train = tokenise(tokenizer, corpus.train).cache()
    lengths = np.array([len(ids) for ids, _ in train.as_numpy_iterator()])
    # A document is padded to a quarter, a half or all of the longest one.
    boundaries = sorted({-int(-lengths.max() // k) for k in (4, 2, 1)})
    batches = functools.partial(
        make_batches,
        boundaries=boundaries,
        tokens_per_batch=options.tokens_per_batch,
        seed=options.seed,
    )
    train = batches(train, shuffle_buffer=sizes["train"])
    print(
        f"  {lengths.sum():,} tokens to train on, {np.median(lengths):.0f} in "
        f"the median document; {len(train):,} batches, padded to {boundaries}"
    )

    announce(f"Train with attention {options.attention!r}")
    keras.utils.set_random_seed(options.seed)
    model = build_model(
        options, tokenizer.vocabulary_size, len(corpus.class_names)
    )
    progress = Progress(
        len(train), options.epochs, int(lengths.sum()), sys.stdout.isatty()
    )
    # Another model of the same layers, so that `model.save` saves neither
    # optimizer nor metrics.
    trainer = keras.Model(model.inputs, model.outputs)
    validation = batches(tokenise(tokenizer, corpus.validation))
    fit(trainer, train, validation, progress, options)
    print(
        f"  {trainable_parameters(model):,} parameters, "
        f"{progress.seconds:.0f} s, {progress.tokens_per_second:,.0f} tokens a "
        "second with compiling and validation"
    )

    announce("Evaluate on the test documents")
    texts, labels = corpus.test
    numbered = tokenise(tokenizer, Documents(texts, [*range(len(texts))]))
    by_length = accuracy_by_length(
        texts,
        labels,
        model=predict(trainer, batches(numbered)),
        floor=predict_from_words(corpus.train, texts),
    )
    print_accuracy(by_length)

    announce("Save and export the model")
    examples = [texts[0], texts[-1]]
    model.save(output / "model.keras")
    export_classifier(model, tokenizer, corpus.class_names, output / "exported")
    served = tf.saved_model.load(str(output / "exported"))
    answers = served.signatures["serving_default"](text=tf.constant(examples))
    print_answers(examples, answers)
    plot_training(output / "training.png", progress)
    plot_accuracy_by_length(
        output / "accuracy_by_length.png",
        by_length,
        model=f"{options.attention}, first {options.max_length:,} tokens",
        floor="bag of words, all",
    )
    results = {
        "test_accuracy": by_length[-1]["model"],
        "bag_of_words_test_accuracy": by_length[-1]["floor"],
        "accuracy_by_length": by_length,
        "class_names": corpus.class_names,
        "documents": sizes | corpus.counts,
        "parameters": trainable_parameters(model),
        "train_tokens": int(lengths.sum()),
        "train_seconds": progress.seconds,
        "tokens_per_second": progress.tokens_per_second,
        "total_seconds": time.perf_counter() - START,
        "processor_seconds": time.process_time(),
        "peak_memory_mib": peak_memory(),
        "train": progress.train,
        "validation": progress.validation,
        "backend": keras.backend.backend(),
        "versions": {x.__name__: x.__version__ for x in (keras, keras_rfa, tf)},
        "options": vars(options),
    }
    (output / "results.json").write_text(json.dumps(results, indent=2))
    print(
        f"  {results['total_seconds']:.0f} s in all, "
        f"{results['processor_seconds']:.0f} s of processor time, "
        f"{results['peak_memory_mib'] or float('nan'):,.0f} MiB at most"
    )


def make_tokenizer(
    options: argparse.Namespace, texts: Sequence[str], output: pathlib.Path
) -> Any:
    """Returns a tokenizer whose vocabulary fits the texts, and writes that."""
    if options.tokenizer == "bytes":
        return ByteTokenizer(max_length=options.max_length)
    vocabulary = learn_vocabulary(texts, options.vocabulary_size)
    (output / "vocabulary.txt").write_text(
        "".join(f"{piece}\n" for piece in vocabulary), encoding="utf-8"
    )
    return WordpieceTokenizer(vocabulary, max_length=options.max_length)


def trainable_parameters(model: keras.Model) -> int:
    """Counts what is learned; the matrices of the pools are not."""
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


def build_model(
    options: argparse.Namespace, vocabulary_size: int, num_classes: int
) -> keras.Model:
    """Returns a classifier with the attention of the options."""
    attention = options.attention
    attention_options = {}
    if ":" in attention:
        module, _, function = attention.partition(":")
        sys.path.append(os.getcwd())
        attention = getattr(importlib.import_module(module), function)
    elif attention.startswith(("rfa", "performer")):
        attention_options["num_features"] = options.features
    return keras_rfa.models.document_classifier(
        vocabulary_size,
        num_classes,
        num_layers=options.layers,
        hidden_dim=options.width,
        num_heads=options.heads,
        intermediate_dim=2 * options.width,
        attention=attention,
        attention_options=attention_options,
        dropout=options.dropout,
    )


def fit(
    model: keras.Model,
    train: tf.data.Dataset,
    validation: tf.data.Dataset,
    progress: Progress,
    options: argparse.Namespace,
) -> None:
    """Trains, and leaves the weights of the best epoch in the model."""
    steps = progress.steps * options.epochs
    warmup_steps = max(1, steps // 20)
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(
            0.0,
            max(1, steps - warmup_steps),
            warmup_target=options.learning_rate,
            warmup_steps=warmup_steps,
        ),
        weight_decay=0.01,
        global_clipnorm=1.0,
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # Weighted, so that rows of padding do not count.
        weighted_metrics=[
            keras.metrics.SparseCategoricalCrossentropy(
                name="cross_entropy", from_logits=True
            ),
            "accuracy",
            DocumentCount(name="documents"),
        ],
        jit_compile=True,
    )
    keep_best = keras.callbacks.EarlyStopping(
        "val_cross_entropy",
        mode="min",
        patience=options.epochs,
        restore_best_weights=True,
    )
    model.fit(
        train,
        epochs=options.epochs,
        validation_data=validation,
        callbacks=[progress, keep_best],
        shuffle=False,  # the batches come shuffled
        verbose=1 if progress.interactive else 0,
    )


def predict(model: keras.Model, batches: tf.data.Dataset) -> np.ndarray:
    """Returns the class of each document; its label is its number."""
    predicted = {}
    for ids, numbers, weights in batches.as_numpy_iterator():
        answers = model.predict_on_batch(ids).argmax(axis=-1)
        real = weights > 0  # and not a row of padding
        predicted.update(zip(numbers[real], answers[real], strict=True))
    return np.array([predicted[number] for number in range(len(predicted))])


def announce(message: str) -> None:
    """Prints a line with the seconds since the start."""
    print(f"[{time.perf_counter() - START:3.0f} s] {message}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: nothing was written.")
