"""Names of classes, as the numbers that a loss takes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_rfa.ops.checks import check_number
from keras_rfa.text.late_import import import_late


class LabelEncoder:
    """Turns names of classes into what a loss takes.

    That is the int32 index of a class or, with `multi_label`, float32 zeros
    and ones `(num_classes,)`.

    Args:
        class_names: list of strings.
        multi_label: bool. Whether a text has any number of classes.
    """

    def __init__(self, class_names: Sequence[str], multi_label: bool) -> None:
        self.class_names = class_names
        self.multi_label = multi_label
        self._index = {name: i for i, name in enumerate(class_names)}

    def find(self, label: Any, where: str) -> list[int]:
        """Returns the indices of the names of one text.

        Args:
            label: a name or, with `multi_label`, an iterable of names.
            where: string. The place of the label, for errors.

        Raises:
            ValueError: if the label is of the other kind, or no class name.
        """
        is_one = isinstance(label, str)
        if self.multi_label and (is_one or not isinstance(label, Iterable)):
            raise ValueError(
                "With `multi_label` each label is a list of names, [] for no "
                f"class. Received: {label!r} {where}"
            )
        if not self.multi_label and not is_one:
            raise ValueError(
                "Each label must be the name of one class; for several, pass "
                f"`multi_label=True`. Received: {label!r} {where}"
            )
        names = list(label) if self.multi_label else [label]
        unknown = [
            name
            for name in names
            if not isinstance(name, str) or name not in self._index
        ]
        if unknown:
            raise ValueError(
                f"Labels must be in `class_names`, {self.class_names}. "
                f"Received: {unknown[0]!r} {where}"
            )
        return [self._index[name] for name in names]

    def from_indices(self, found: Sequence[Sequence[int]]) -> np.ndarray:
        """Returns the labels of texts, from what `find` returned for each."""
        if not self.multi_label:
            return np.array([index for (index,) in found], "int32")
        labels = np.zeros((len(found), len(self.class_names)), "float32")
        for row, indices in zip(labels, found, strict=True):
            row[list(indices)] = 1
        return labels

    def from_strings(self, label: Any) -> Any:
        """Returns one label, in a graph, from a string or strings `(k,)`."""
        tf = import_late("tensorflow")
        is_class = tf.equal(label[..., None], tf.constant(self.class_names))
        if self.multi_label:
            return tf.cast(tf.reduce_any(is_class, axis=0), tf.float32)
        return tf.argmax(is_class, output_type=tf.int32)

    def class_weights(
        self, class_weight: Mapping[str, float] | str, counts: np.ndarray
    ) -> np.ndarray:
        """Returns the weight of each class, float32 `(num_classes,)`.

        Args:
            class_weight: dict of names and weights, or `"balanced"`.
            counts: int array `(num_classes,)`, the texts of each class.

        Raises:
            ValueError: for something else, for other names, and for weights
                that are no finite numbers of at least 0.
        """
        if isinstance(class_weight, str) and class_weight == "balanced":
            present = max(1, np.count_nonzero(counts))
            weights = counts.sum() / (present * np.maximum(counts, 1))
            return weights.astype("float32")
        if not isinstance(class_weight, Mapping):
            raise ValueError(
                "`class_weight` must be a dict of class names and weights, or "
                f"'balanced'. Received: class_weight={class_weight!r}"
            )
        unknown = [name for name in class_weight if name not in self._index]
        if unknown:
            raise ValueError(
                f"`class_weight` must have names of {self.class_names}. "
                f"Received: {unknown}"
            )
        for name, weight in class_weight.items():
            check_number(f"class_weight[{name!r}]", weight)
        weights = [class_weight.get(name, 1.0) for name in self.class_names]
        return np.array(weights, "float32")

    def weigh(self, batches: Any, class_weights: np.ndarray) -> Any:
        """Returns a dataset whose sample weights are those of the classes.

        Args:
            batches: `tf.data.Dataset` of `(ids, label, sample_weight)`.
            class_weights: float32 array `(num_classes,)`. A text of several
                classes has their mean, one of no class weighs 1.
        """
        tf = import_late("tensorflow")

        def weigh(ids: Any, label: Any, weight: Any) -> tuple[Any, Any, Any]:
            if not self.multi_label:
                return ids, label, weight * tf.gather(class_weights, label)
            number = tf.reduce_sum(label, axis=-1)
            mean = tf.linalg.matvec(label, class_weights)
            mean = tf.where(number > 0, mean / tf.maximum(number, 1.0), 1.0)
            return ids, label, weight * mean

        return batches.map(weigh)
