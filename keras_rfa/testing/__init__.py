"""The contract of the attention layers, for your own layers too.

Each `check_...` function makes a layer, puts it to one promise and raises an
`AssertionError` that says what was compared. `CHECKS` holds all of them, and
`check_all` runs them. They need no test framework.

Example:

>>> import keras_rfa.testing
>>> @keras.saving.register_keras_serializable(package="mine")
... def relu_features(x, projection):
...     return keras.ops.relu(keras.ops.einsum("bthd,hDd->bthD", x, projection))
>>> keras_rfa.testing.check_all(
...     lambda: keras_rfa.layers.RandomFeatureAttention(
...         2, key_dim=8, feature_map=relu_features, seed=0),
...     form="bidirectional")
"""

from keras_rfa.testing.assertions import assert_close as assert_close
from keras_rfa.testing.assertions import assert_equal as assert_equal
from keras_rfa.testing.assertions import assert_finite as assert_finite
from keras_rfa.testing.backends import as_numpy as as_numpy
from keras_rfa.testing.backends import as_tensors as as_tensors
from keras_rfa.testing.backends import compiled as compiled
from keras_rfa.testing.backends import differentiated as differentiated
from keras_rfa.testing.backends import operations as operations
from keras_rfa.testing.backends import peak_memory as peak_memory
from keras_rfa.testing.contract import CHECKS as CHECKS
from keras_rfa.testing.contract import check_all as check_all
from keras_rfa.testing.reference import (
    attention_reference as attention_reference,
)
from keras_rfa.testing.reference import (
    feature_map_reference as feature_map_reference,
)
from keras_rfa.testing.reference import (
    linear_attention_reference as linear_attention_reference,
)
from keras_rfa.testing.saving import check_saving as check_saving
from keras_rfa.testing.training import check_fit as check_fit
from keras_rfa.testing.training import check_graph_size as check_graph_size
from keras_rfa.testing.training import (
    check_linear_growth as check_linear_growth,
)
from keras_rfa.testing.training import check_precision as check_precision
from keras_rfa.testing.values import (
    check_attention_scores as check_attention_scores,
)
from keras_rfa.testing.values import check_causality as check_causality
from keras_rfa.testing.values import check_chunk_size as check_chunk_size
from keras_rfa.testing.values import check_padding as check_padding
from keras_rfa.testing.values import check_reference as check_reference
from keras_rfa.testing.values import check_streaming as check_streaming
