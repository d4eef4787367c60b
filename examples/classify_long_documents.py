"""Train a classifier of long documents, measure it and export it.

    python -m pip install -e ".[examples]"
    python examples/classify_long_documents.py
    KERAS_BACKEND=jax python examples/classify_long_documents.py \\
        --data-dir my_documents --max-length 4096
    python examples/classify_long_documents.py \\
        --csv my_documents.csv --text-column body --label-column topic

Without `--data-dir` or `--csv` the documents are 25,000 film reviews, which
take less than ten minutes on two processor cores. Your own are a folder of
text files for each class, or a table. The program learns a vocabulary, trains
a transformer with linear-time attention, compares it on the test set with a
bag of words, and writes one folder:

    model.keras             the Keras model
    classifier.json         with it, what `keras_rfa.TextClassifier.load` reads
    vocabulary.txt          the pieces of words (with `--tokenizer wordpiece`)
    exported/               a SavedModel that answers raw text
    results.json            all figures, and the options
    training.png, accuracy_by_length.png, confusion_matrix.png
"""

import argparse
import importlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from documents import PARTS, Corpus, read_csv, read_folders, read_reviews
from options import UserError, check_output, parse_options
from progress import (
    START,
    DocumentCount,
    Progress,
    announce,
    peak_memory,
    trainable_parameters,
)
from report import (
    accuracy_by_length,
    in_words,
    plot_accuracy_by_length,
    plot_confusion,
    plot_training,
    predict_from_words,
    print_accuracy,
    print_answers,
    print_confusion,
)
from sklearn.metrics import confusion_matrix, f1_score
from tokens import read_tokens, write_vocabulary

import keras_rfa
from keras_rfa import TextClassifier
from keras_rfa.export import clone_for_serving, new_directory
from keras_rfa.text import (
    ByteTokenizer,
    WordpieceTokenizer,
    learn_vocabulary,
)


def main() -> None:
    """Runs the program; the folder of outputs appears whole or not at all."""
    options = parse_options()
    if keras.backend.backend() not in ("tensorflow", "jax"):
        raise UserError(
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
    corpus = read_documents(options)
    sizes = {part: len(getattr(corpus, part).texts) for part in PARTS}
    print(f"  classes: {', '.join(corpus.class_names)}")
    print(f"  documents: {in_words(sizes)}; {in_words(corpus.counts)}")

    announce("Learn the vocabulary from the training documents")
    tokenizer = make_tokenizer(options, corpus.train.texts)
    train_ids = read_tokens(tokenizer, corpus.train.texts)
    lengths = np.array([len(ids) for ids in train_ids])
    print(
        f"  {tokenizer.vocabulary_size:,} different tokens; {lengths.sum():,} "
        f"tokens to train on, {np.median(lengths):.0f} in the median document"
    )

    announce(f"Train with attention {options.attention!r}")
    keras.utils.set_random_seed(options.seed)
    model = build_model(
        options, tokenizer.vocabulary_size, len(corpus.class_names)
    )
    classifier = TextClassifier(model, tokenizer, corpus.class_names)
    progress = Progress(int(lengths.sum()), sys.stdout.isatty())
    fit(classifier, corpus, progress, options)
    print(
        f"  {trainable_parameters(model):,} parameters, "
        f"{progress.seconds:.0f} s, {progress.tokens_per_second:,.0f} tokens a "
        "second with compiling and validation"
    )

    announce("Evaluate on the test documents")
    texts, labels = corpus.test
    probabilities = classifier.predict(
        texts, verbose=1 if progress.interactive else 0
    )
    answers = probabilities.argmax(axis=-1)
    floors = {"floor": predict_from_words(corpus.train, texts)}
    if options.max_length is not None:
        floors["floor_read"] = predict_from_words(
            corpus.train._replace(texts=tokenizer.detokenize(train_ids)),
            tokenizer.detokenize(read_tokens(tokenizer, texts)),
        )
    by_length = accuracy_by_length(texts, labels, model=answers, **floors)
    print_accuracy(by_length)
    matrix = confusion_matrix(
        labels, answers, labels=range(len(corpus.class_names))
    )
    macro_f1 = float(f1_score(labels, answers, average="macro"))
    print_confusion(matrix, corpus.class_names)
    print(f"  macro-averaged F1 {macro_f1:.3f}")

    announce("Save and export the model")
    # First, since it puts a new folder in the place of the empty one.
    classifier.save(output, overwrite=True)
    write_vocabulary(tokenizer, output)
    classifier.export(output / "exported")
    served = tf.saved_model.load(str(output / "exported"))
    examples = [texts[0], texts[-1]]
    print_answers(
        examples,
        served.signatures["serving_default"](text=tf.constant(examples)),
    )
    plot_training(output / "training.png", progress)
    read = f"windows of {options.window} tokens"
    if options.window is None:
        read = f"first {options.max_length:,} tokens"
    lines = {
        "model": f"{options.attention}, {read}",
        "floor": "bag of words, all",
        "floor_read": f"bag of words, {read}",
    }
    plot_accuracy_by_length(
        output / "accuracy_by_length.png",
        by_length,
        **{name: lines[name] for name in ("model", *floors)},
    )
    plot_confusion(output / "confusion_matrix.png", matrix, corpus.class_names)
    results = {
        "test_accuracy": by_length[-1]["model"],
        "bag_of_words_test_accuracy": by_length[-1]["floor"],
        "bag_of_words_read_test_accuracy": by_length[-1].get("floor_read"),
        "accuracy_by_length": by_length,
        "macro_f1": macro_f1,
        "confusion_matrix": matrix.tolist(),
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


def read_documents(options: argparse.Namespace) -> Corpus:
    """Reads the documents that the options name."""
    if options.data_dir is not None:
        return read_folders(options.data_dir, options.fold)
    if options.csv is not None:
        columns = options.text_column, options.label_column
        return read_csv(options.csv, *columns, options.fold)
    return read_reviews()


def make_tokenizer(options: argparse.Namespace, texts: Sequence[str]) -> Any:
    """Returns a tokenizer whose vocabulary fits the texts."""
    if options.tokenizer == "bytes":
        return ByteTokenizer(max_length=options.max_length)
    try:
        vocabulary = learn_vocabulary(texts, options.vocabulary_size)
    except ValueError as error:
        raise UserError(f"No vocabulary can be learned: {error}") from error
    return WordpieceTokenizer(vocabulary, max_length=options.max_length)


def build_model(
    options: argparse.Namespace, vocabulary_size: int, num_classes: int
) -> keras.Model:
    """Returns a classifier with the attention of the options."""
    attention = options.attention
    attention_options = {}
    if ":" in attention:
        module, _, function = attention.partition(":")
        sys.path.append(os.getcwd())
        try:
            attention = getattr(importlib.import_module(module), function)
        except (ModuleNotFoundError, AttributeError) as error:
            if getattr(error, "name", None) not in (module, function):
                raise
            raise UserError(f"`--attention` is not there: {error}") from error
    elif attention.startswith(("rfa", "performer")):
        attention_options["num_features"] = options.features
    try:
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
            causal=options.window is not None,
            convolution=options.convolution,
            window=options.window,
        )
    except ValueError as error:
        if not isinstance(attention, str):
            raise  # it may come from an attention of one's own
        raise UserError(f"The options do not fit: {error}") from error


def fit(
    classifier: TextClassifier,
    corpus: Corpus,
    progress: Progress,
    options: argparse.Namespace,
) -> None:
    """Trains, and leaves the weights of the best epoch in the model."""

    def make_optimizer(steps: int) -> keras.optimizers.Optimizer:
        warmup_steps = max(1, steps // 20)
        return keras.optimizers.AdamW(
            keras.optimizers.schedules.CosineDecay(
                0.0,
                max(1, steps - warmup_steps),
                warmup_target=options.learning_rate,
                warmup_steps=warmup_steps,
            ),
            weight_decay=options.weight_decay,
            global_clipnorm=1.0,
        )

    output = pathlib.Path(options.output_dir)
    keep_best = keras.callbacks.EarlyStopping(
        "val_cross_entropy",
        mode="min",
        patience=options.epochs,
        restore_best_weights=True,
    )
    train, validation = (
        (part.texts, [corpus.class_names[i] for i in part.labels])
        for part in (corpus.train, corpus.validation)
    )
    classifier.fit(
        *train,
        validation_data=validation,
        epochs=options.epochs,
        tokens_per_batch=options.tokens_per_batch,
        callbacks=[progress, keep_best],
        optimizer=make_optimizer,
        metrics=[DocumentCount(name="documents")],
        seed=options.seed,
        backup=f"{output}.backup" if options.resume else None,
        verbose=1 if progress.interactive else 0,
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: no results were written.")
    except (UserError, OSError) as error:
        sys.exit(str(error))
