"""Batches of documents of like length, in few shapes that never change."""

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_rfa.ops.checks import check_positive
from keras_rfa.text.late_import import import_late


def bucket_batches(
    dataset: Any,
    boundaries: Sequence[int],
    tokens_per_batch: int,
    shuffle_buffer: int | None = None,
    seed: int | None = None,
    drop_remainder: bool = False,
    epoch: Any = None,
) -> Any:
    """Batches documents with others of like length, in few different shapes.

    A document is padded to the first boundary that it does not exceed, or cut
    to the last. Batches come as they are full, so that documents change their
    order: to predict, give each its number as label.

    All batches of a boundary have one shape, so that a model is compiled once
    a boundary: rows of padding complete the last one, with label 0 and sample
    weight 0 where there are labels. They add nothing to gradients or to the
    `weighted_metrics` of `compile`; `metrics` and the mean loss count them.

    With `epoch`, the order depends on `seed` and on the number of the epoch
    alone, and not on how often the dataset was read: training that
    `keras_rfa.callbacks.BackupAndResume` resumes reads what it would have
    read. The number counts when the first batch is asked for. With
    `steps_per_epoch` an epoch goes on where the one before ended, so that
    only as many steps as there are batches, of a dataset that is repeated
    last of all, begin each epoch with its order.

    Args:
        dataset: `tf.data.Dataset` of `(ids, label)`, or of `ids` alone, not
            batched: integer ids `(t,)` and a label of known shape.
        boundaries: list of increasing lengths, such as `[256, 512, 1024]`.
        tokens_per_batch: int. A batch has `tokens_per_batch // boundary` rows,
            at least 1.
        shuffle_buffer: int. How many documents to shuffle at once, anew in
            each epoch. `None` keeps the order.
        seed: int. Seed of the shuffle.
        drop_remainder: bool. Whether to drop incomplete batches instead of
            completing them.
        epoch: `tf.Variable`, a scalar of int64 on the CPU: the number of the
            epoch, which `BackupAndResume` keeps. It needs `shuffle_buffer`
            and `seed`.

    Returns:
        `tf.data.Dataset` of `(ids, label, sample_weight)` or of `(ids,)`.

    Raises:
        ValueError: if the boundaries do not increase, if the dataset is
            batched or has other elements, or if `epoch` is no such variable
            or has nothing to shuffle.

    Example:

    ```python
    dataset = tf.data.Dataset.from_tensor_slices((texts, labels))
    dataset = dataset.map(lambda text, label: (tokenizer(text), label))
    model.fit(bucket_batches(dataset, [256, 512, 1024], 16384))
    ```
    """
    tf = import_late("tensorflow")
    check_positive("tokens_per_batch", tokens_per_batch)
    check_positive("len(boundaries)", len(boundaries))
    if shuffle_buffer is not None:
        check_positive("shuffle_buffer", shuffle_buffer)
    for before, length in itertools.pairwise([0, *boundaries]):
        check_positive("boundaries", length, before + 1)
    sizes = [max(1, tokens_per_batch // length) for length in boundaries]
    spec = dataset.element_spec
    spec = spec if isinstance(spec, tuple) else (spec,)
    ids, *label = spec
    is_pair = len(label) < 2 and not any(isinstance(x, dict) for x in spec)
    if not is_pair or ids.shape.rank != 1:
        raise ValueError(
            "`dataset` must hold `(ids, label)` or `ids`, with ids of shape "
            f"(t,), not batched. Received: elements of {spec}."
        )

    def cut(ids: Any, *label: Any) -> Any:
        return ids[: boundaries[-1]], *label, *(1.0 for _ in label)

    dataset = dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE)
    ids, *rest = dataset.element_spec

    def filler(length: Any) -> Any:
        zeros = (tf.zeros(x.shape, x.dtype) for x in rest)
        return tf.zeros([length], ids.dtype), *zeros

    if epoch is not None:
        dataset = _shuffle_by_epoch(dataset, shuffle_buffer, seed, epoch)
    elif shuffle_buffer is not None:
        dataset = dataset.shuffle(shuffle_buffer, seed)
    if not drop_remainder:
        # Enough to complete any batch; what is left over is dropped below.
        spare = np.repeat(boundaries, [size - 1 for size in sizes])
        fillers = tf.data.Dataset.from_tensor_slices(spare).map(filler)
        dataset = dataset.concatenate(fillers)
    # The limits are exclusive, and documents are padded to one less.
    dataset = dataset.bucket_by_sequence_length(
        lambda ids, *_: tf.shape(ids)[0],
        [length + 1 for length in boundaries],
        [*sizes, 1],
        padded_shapes=([None], *(x.shape for x in rest)),
        pad_to_bucket_boundary=True,
        drop_remainder=True,
    ).prefetch(2)
    # With autotune, closing an iterator can wait up to a minute for the tuner.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _shuffle_by_epoch(
    dataset: Any, shuffle_buffer: int | None, seed: int | None, epoch: Any
) -> Any:
    """Shuffles in an order that depends on two numbers alone."""
    tf = import_late("tensorflow")
    if not isinstance(epoch, tf.Variable) or (
        (epoch.dtype, epoch.shape.rank) != (tf.int64, 0)
    ):
        raise ValueError(
            "`epoch` must be a `tf.Variable` that holds an integer, such as "
            f"`tf.Variable(0, dtype=tf.int64)`. Received: epoch={epoch!r}"
        )
    if shuffle_buffer is None or seed is None:
        raise ValueError(
            "`epoch` decides the order together with `seed`, so it needs "
            "`shuffle_buffer` and `seed`. Received: "
            f"shuffle_buffer={shuffle_buffer}, seed={seed}"
        )

    # TensorFlow takes two seeds, of the graph and of the operation. The first
    # must not be 0 where the second is a tensor.
    graph_seed = operator.index(seed) % (2**31 - 2) + 1

    def shuffled(_: Any) -> Any:
        tf.compat.v1.set_random_seed(graph_seed)  # of this function alone
        return dataset.shuffle(shuffle_buffer, epoch.read_value())

    # The function runs when the first batch of an iterator is asked for.
    return tf.data.Dataset.range(1).flat_map(shuffled)
