"""A classifier of texts: model, tokenizer and names of classes in one."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_rfa.callbacks import BackupAndResume
from keras_rfa.export import export_classifier, new_directory
from keras_rfa.models.classifier_model import (
    check_classifier,
    compile_classifier,
)
from keras_rfa.ops.checks import check_number, check_positive
from keras_rfa.text import classifier_file
from keras_rfa.text.buckets import bucket_batches
from keras_rfa.text.label_encoder import LabelEncoder
from keras_rfa.text.labelled_texts import (
    check_texts,
    read_labelled_texts,
    read_validation,
    tokenise,
    with_cardinality,
)
from keras_rfa.text.late_import import import_late


class TextClassifier:
    """Trains, asks, saves and exports a model by texts and names of classes.

    Texts are padded to one of few lengths, the powers of two from 64 on and
    the `max_length` of the tokenizer. The model is compiled at most once for
    each, whatever the lengths of texts and however many calls.

    Args:
        model: a Functional or Sequential model from token ids `(b, t)`, int32
            with 0 for padding, to logits `(b, num_classes)`, such as
            `keras_rfa.models.document_classifier` builds. It is not copied:
            `fit` trains it.
        tokenizer: `keras_rfa.text.WordpieceTokenizer` or `ByteTokenizer`, or
            a callable from a tensor of strings `(b,)` to int32 ids `(b, t)`
            that works in a TensorFlow graph. Texts are cut to its
            `max_length`, if it has one.
        class_names: sequence of strings, the names of the logits in order.
        multi_label: bool. `False`: each text has one class, and its
            probabilities sum to 1. `True`: it has any number of classes, and
            each probability is for itself.

    Raises:
        ValueError: if the model has other inputs or outputs, if class names
            are repeated, or if the tokenizer has more ids than the model.

    Example:

    ```python
    tokenizer = keras_rfa.text.ByteTokenizer(max_length=1024)
    model = keras_rfa.models.document_classifier(
        tokenizer.vocabulary_size, 2, num_layers=1, hidden_dim=64,
        num_heads=2, intermediate_dim=128)
    classifier = keras_rfa.TextClassifier(model, tokenizer, ["ham", "spam"])
    classifier.fit(texts, labels, epochs=3)
    classifier.predict_labels(["Dear friend, you have won."])
    classifier.save("classifier")
    ```
    """

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        class_names: Sequence[str],
        *,
        multi_label: bool = False,
    ) -> None:
        check_classifier(model, tokenizer, class_names)
        self.class_names = [str(name) for name in class_names]
        self.model = model
        self.tokenizer = tokenizer
        self.multi_label = multi_label
        self._encoder = LabelEncoder(self.class_names, multi_label)
        longest = getattr(tokenizer, "max_length", None) or 2**30
        powers = (2**k for k in range(6, 30))
        self._boundaries = [*(n for n in powers if n < longest), longest]

    def fit(
        self,
        texts: Any,
        labels: Any = None,
        *,
        validation_data: Any = None,
        epochs: int = 1,
        tokens_per_batch: int = 4096,
        class_weight: Mapping[str, float] | str | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        optimizer: Any = None,
        metrics: Sequence[keras.metrics.Metric] = (),
        seed: int = 0,
        backup: str | os.PathLike[str] | None = None,
        verbose: str | int = "auto",
    ) -> keras.callbacks.History:
        """Trains the model.

        The loss is the cross entropy, categorical or, with `multi_label`,
        binary. Metrics are `"cross_entropy"` and `"accuracy"`; `"loss"` is
        lower than the first, since it counts rows of padding as 0.

        A model that is compiled is trained as it was compiled, unless you
        give `optimizer` or `metrics`: a model that you compiled, with a loss
        of logits and either indices `(b,)` or zeros and ones
        `(b, num_classes)`, and metrics among the `weighted_metrics`, where
        rows of padding do not count; or that of an earlier `fit`, which this
        one goes on from.

        Args:
            texts: list or other iterable of strings, or a finite
                `tf.data.Dataset` of `(text, label)`, not batched. Tokens of a
                list are kept in memory. A dataset is read once more than
                there are epochs, and shuffled 10,000 texts at a time.
            labels: a class name for each text; with `multi_label` a list of
                names for each. In a dataset, a string or strings `(k,)`.
            validation_data: `(texts, labels)`, or a dataset as above.
            epochs: int. How often to read the texts.
            tokens_per_batch: int. Tokens of a step, with padding.
            class_weight: dict of class names and weights of their texts in
                the loss, 1 for the others; or `"balanced"`, weights inverse
                to the number of texts of a class, 1 in the mean. With
                `multi_label` a text has the mean weight of its classes.
            callbacks: list of Keras callbacks.
            optimizer: Keras optimizer, its name, or a function that makes
                one for the number of steps, for schedules. `None` is AdamW
                with a learning rate of 0.001.
            metrics: further Keras metrics.
            seed: int. The order of the texts depends on it and on the number
                of the epoch.
            backup: path of a file. All that training needs is written to it
                after each epoch, and it is deleted at the end. If it is there
                already, the same call resumes what was interrupted, exactly:
                see `keras_rfa.callbacks.BackupAndResume`.
            verbose: as in `keras.Model.fit`.

        Returns:
            `keras.callbacks.History`.

        Raises:
            ValueError: before the training, if a label is not among the class
                names, if no training text has a label of the validation, or
                if another argument does not fit.
        """
        check_positive("epochs", epochs)
        check_positive("tokens_per_batch", tokens_per_batch)
        tf = import_late("tensorflow")
        with tf.device("CPU"):
            epoch = tf.Variable(0, dtype=tf.int64)
        callbacks = list(callbacks or ())
        if backup is None:
            count = keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda number, logs: epoch.assign(number)
            )
        else:
            count = BackupAndResume(backup, epoch=epoch, callbacks=callbacks)
        how = self._encoder, self.tokenizer
        sizes = self._boundaries, tokens_per_batch
        train = read_labelled_texts("texts", texts, labels, *how)
        batches = train.batches(*sizes, seed, epoch)
        validation = validation_data
        if validation is not None:
            held_out = read_validation(validation, train.counts, *how)
            validation = held_out.batches(*sizes)
        if class_weight is not None:
            weights = self._encoder.class_weights(class_weight, train.counts)
            batches = self._encoder.weigh(batches, weights)
        if optimizer is not None or metrics or not self.model.compiled:
            steps = epochs * len(batches)
            compile_classifier(
                self.model, optimizer, metrics, steps, self.multi_label
            )
        return self.model.fit(
            batches,
            validation_data=validation,
            epochs=epochs,
            callbacks=[*callbacks, count],
            shuffle=False,  # the batches come shuffled
            verbose=verbose,
        )

    def predict(
        self,
        texts: Iterable[str],
        *,
        tokens_per_batch: int = 4096,
        verbose: str | int = "auto",
    ) -> np.ndarray:
        """Returns the probabilities of the classes.

        Args:
            texts: list or other iterable of strings.
            tokens_per_batch: int. Tokens of a step, with padding. Another
                number than before compiles the model again.
            verbose: as in `keras.Model.predict`.

        Returns:
            float32 array `(n, num_classes)`, in the order of the texts.

        Raises:
            ValueError: if the texts are one string, or not strings.
        """
        strings = check_texts("texts", texts)
        probabilities = np.zeros((len(strings), len(self.class_names)), "f4")
        if not strings:
            return probabilities
        tf = import_late("tensorflow")
        numbered = (strings, np.arange(len(strings)))
        dataset = tf.data.Dataset.from_tensor_slices(numbered)
        ids = tokenise(dataset, self.tokenizer)
        batches = bucket_batches(ids, self._boundaries, tokens_per_batch)
        batches = batches.cache()
        order = [x[1:] for x in batches.as_numpy_iterator()]
        numbers, weights = (np.concatenate(x) for x in zip(*order, strict=True))
        logits = self.model.predict(
            with_cardinality(batches.map(lambda ids, *_: (ids,)), len(order)),
            verbose=verbose,
        ).astype("float32")
        ops, real = keras.ops, weights > 0
        answers = (ops.sigmoid if self.multi_label else ops.softmax)(logits)
        probabilities[numbers[real]] = ops.convert_to_numpy(answers)[real]
        return probabilities

    def predict_labels(
        self, texts: Iterable[str], *, threshold: float = 0.5, **options: Any
    ) -> list[Any]:
        """Returns the names of the classes of texts.

        Args:
            texts: list or other iterable of strings.
            threshold: float. With `multi_label`, the probability from which
                on a text has a class.
            **options: as in `predict`.

        Returns:
            A list of the most probable class of each text or, with
            `multi_label`, of a list of names for each.

        Raises:
            ValueError: as `predict`.
        """
        threshold = check_number("threshold", threshold)
        probabilities = self.predict(texts, **options)
        names = self.class_names
        if self.multi_label:
            return [
                [names[i] for i in np.flatnonzero(row >= threshold)]
                for row in probabilities
            ]
        return [names[i] for i in probabilities.argmax(axis=-1)]

    def save(
        self, path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> None:
        """Writes `model.keras`, without optimizer, and `classifier.json`.

        The folder appears whole or not at all.

        Args:
            path: the folder to make.
            overwrite: bool. Whether to replace a folder that exists.

        Raises:
            ValueError: if Keras cannot serialise the tokenizer.
            FileExistsError: if `path` exists and `overwrite` is `False`.
        """
        config = classifier_file.serialise(
            self.tokenizer, self.class_names, self.multi_label
        )
        with new_directory(path, overwrite=overwrite) as directory:
            file = f"{directory}/model.keras"
            self.model.save(file)
            if self.model.compiled:  # again, without the optimizer
                keras.models.load_model(file, compile=False).save(file)
            classifier_file.write(directory, config)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what `save` has written, on this backend or another one.

        Args:
            path: the folder.

        Raises:
            ValueError: if it is no such folder, or of another format.
        """
        return cls(**classifier_file.read(path))

    def export(
        self, path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> None:
        """Writes a SavedModel that answers raw text without `keras_rfa`.

        Args:
            path: the folder to make.
            overwrite: bool. Whether to replace a folder that exists.

        Raises:
            ValueError, FileExistsError, ImportError: as
                `keras_rfa.export.export_classifier`.
        """
        export_classifier(
            self.model,
            self.tokenizer,
            self.class_names,
            path,
            multi_label=self.multi_label,
            overwrite=overwrite,
        )
