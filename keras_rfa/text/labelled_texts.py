"""Texts with the names of their classes, checked and tokenised."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_rfa.text.buckets import bucket_batches
from keras_rfa.text.label_encoder import LabelEncoder
from keras_rfa.text.late_import import import_late


class LabelledTexts(NamedTuple):
    """Texts as token ids, labels as numbers, and what was counted.

    Args:
        dataset: `tf.data.Dataset` of ids `(t,)` and labels, as a
            `LabelEncoder` gives them.
        lengths: int array `(n,)`, the number of tokens of each text.
        counts: int array `(num_classes,)`, the number of texts of each class.
        shuffle_buffer: int. How many texts to shuffle at once.
    """

    dataset: Any
    lengths: np.ndarray
    counts: np.ndarray
    shuffle_buffer: int

    def batches(
        self,
        boundaries: Sequence[int],
        tokens_per_batch: int,
        seed: int | None = None,
        epoch: Any = None,
    ) -> Any:
        """Returns `bucket_batches`, whose number Keras can show.

        Args:
            boundaries: list of increasing lengths.
            tokens_per_batch: int. Tokens of a batch, with padding.
            seed: int. Seed of the shuffle; `None` keeps the order.
            epoch: `tf.Variable`, the number of the epoch to shuffle for.
        """
        buffer = None if seed is None else self.shuffle_buffer
        batches = bucket_batches(
            self.dataset,
            boundaries,
            tokens_per_batch,
            buffer,
            seed,
            epoch=epoch,
        )
        buckets = np.searchsorted(boundaries[:-1], self.lengths)
        rows = np.bincount(buckets, minlength=len(boundaries))
        sizes = [max(1, tokens_per_batch // n) for n in boundaries]
        return with_cardinality(batches, int(np.ceil(rows / sizes).sum()))


def read_labelled_texts(
    argument: str,
    texts: Any,
    labels: Any,
    encoder: LabelEncoder,
    tokenizer: Any,
) -> LabelledTexts:
    """Looks at every text and label.

    Args:
        argument: string, the name of the texts in errors.
        texts: iterable of strings, whose tokens are kept in memory, or a
            finite `tf.data.Dataset` of `(text, label)`, which is read here
            and again in each epoch.
        labels: iterable of labels, as `LabelEncoder.find` takes them; `None`
            with a dataset.
        encoder: `LabelEncoder`.
        tokenizer: callable from strings `(b,)` to ids `(b, t)`.

    Raises:
        ValueError: if there are no texts, if a text is no string, or if a
            label is no class name.
    """
    tf = import_late("tensorflow")
    found, lengths = [], []
    if isinstance(texts, tf.data.Dataset):
        _check_dataset(argument, texts, labels, encoder.multi_label)
        where = f"in `{argument}`"
        dataset = tokenise(texts, tokenizer)
        for ids, label in dataset.as_numpy_iterator():
            names = [
                name.decode("utf-8", "replace") for name in np.ravel(label)
            ]
            names = names if encoder.multi_label else names[0]
            found.append(encoder.find(names, where))
            lengths.append(len(ids))
        dataset = dataset.map(lambda ids, x: (ids, encoder.from_strings(x)))
        shuffle_buffer = min(len(lengths), 10_000)
    else:
        strings = check_texts(argument, texts)
        for i, label in enumerate(_check_labels(argument, labels, strings)):
            where = f"with text {i} of `{argument}`"
            found.append(encoder.find(label, where))
        # Said by their types, for there may be none.
        slices = tf.constant(strings, tf.string), encoder.from_indices(found)
        dataset = tf.data.Dataset.from_tensor_slices(slices)
        dataset = tokenise(dataset, tokenizer).cache()
        lengths += [len(ids) for ids, _ in dataset.as_numpy_iterator()]
        shuffle_buffer = len(lengths)
    if not found:
        raise ValueError(f"`{argument}` must hold texts. Received: none.")
    counts = np.zeros(len(encoder.class_names), "int64")
    for indices in found:
        counts[sorted(set(indices))] += 1
    return LabelledTexts(dataset, np.array(lengths), counts, shuffle_buffer)


def read_validation(
    data: Any, counts: np.ndarray, encoder: LabelEncoder, tokenizer: Any
) -> LabelledTexts:
    """Reads texts whose classes must all be among the texts to train on.

    Args:
        data: `(texts, labels)`, or a dataset of `(text, label)`.
        counts: int array `(num_classes,)`, the texts to train on.
        encoder: `LabelEncoder`.
        tokenizer: callable from strings `(b,)` to ids `(b, t)`.

    Raises:
        ValueError: as `read_labelled_texts`, and for a class without any.
    """
    name = "validation_data"
    texts, labels = data, None
    if isinstance(data, tuple | list):
        if len(data) != 2:
            raise ValueError(
                f"`{name}` must be `(texts, labels)` or a dataset. "
                f"Received: {len(data)} values"
            )
        texts, labels = data
    found = read_labelled_texts(name, texts, labels, encoder, tokenizer)
    unseen = np.flatnonzero((found.counts > 0) & (counts == 0))
    if unseen.size:
        raise ValueError(
            f"`{name}` must have no label that no text to train on has. "
            f"Received: {[encoder.class_names[int(i)] for i in unseen]}"
        )
    return found


def tokenise(dataset: Any, tokenizer: Any) -> Any:
    """Returns a dataset of `(ids, label)` for one of `(text, label)`."""
    tf = import_late("tensorflow")
    return dataset.map(
        lambda text, label: (tokenizer(text[None])[0], label),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def with_cardinality(batches: Any, steps: int) -> Any:
    """Returns a dataset with a length, by which Keras shows what is left."""
    tf = import_late("tensorflow")
    return batches.apply(tf.data.experimental.assert_cardinality(steps))


def check_texts(argument: str, texts: Any) -> list[bytes]:
    """Returns texts in UTF-8, or raises a `ValueError`."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise ValueError(
            f"`{argument}` must be a list of strings; put a single one into "
            f"a list. Received: {argument}={texts!r}"
        )
    encoded = []
    for i, text in enumerate(texts):
        try:
            encoded.append(text.encode())
        except (AttributeError, UnicodeEncodeError) as error:
            raise ValueError(
                f"`{argument}` must be strings that UTF-8 can encode. "
                f"Received: {text!r} as text {i}"
            ) from error
    return encoded


def _check_labels(
    argument: str, labels: Any, texts: Sequence[bytes]
) -> list[Any]:
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise ValueError(
            f"`{argument}` must come with a list of labels, one for each "
            f"text. Received: labels={labels!r}"
        )
    labels = list(labels)
    if len(labels) != len(texts):
        raise ValueError(
            f"`{argument}` must come with as many labels as texts. "
            f"Received: {len(labels)} labels, {len(texts)} texts"
        )
    return labels


def _check_dataset(
    argument: str, dataset: Any, labels: Any, multi_label: bool
) -> None:
    tf = import_late("tensorflow")
    spec = dataset.element_spec
    ranks = [0, 1 if multi_label else 0]
    fits = isinstance(spec, tuple) and len(spec) == 2
    if not fits or any(
        getattr(x, "dtype", None) != tf.string or x.shape.rank != rank
        for x, rank in zip(spec, ranks, strict=True)
    ):
        names = "its names, strings (k,)" if multi_label else "a string"
        raise ValueError(
            f"`{argument}` as a dataset must hold `(text, label)`, not "
            f"batched: a string and {names}. Received: elements of {spec}"
        )
    if labels is not None:
        raise ValueError(
            f"`{argument}` as a dataset holds the labels too. Received also: "
            f"labels={labels!r}"
        )
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            f"`{argument}` must be finite: drop its `repeat()` and give "
            "`epochs`. Received: a dataset without end."
        )
