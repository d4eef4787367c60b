"""Linear-time attention as pure functions on tensors.

Shape comments and einsum equations in this package use one set of letters:

| letter | meaning                                                       |
| ------ | ------------------------------------------------------------- |
| `b`    | batch                                                         |
| `t`    | query length                                                  |
| `s`    | key length                                                    |
| `h`    | heads                                                         |
| `d`    | key width, the width of one query or key                      |
| `e`    | value width                                                   |
| `D`    | random features: rows of a random matrix `W`                  |
| `m`    | feature width: `2 D` for the gaussian map, `D` for the others |
| `c`    | chunk: steps that are computed by one matrix product          |
| `n`    | chunks                                                        |

In formulas `φ` is the feature map, `S`, `z` and `c` are the sums that a state
holds (the entries `"s"`, `"z"` and `"weight"`), and `g` is the forget gate.
"""

from keras_rfa.ops.attention_weights import (
    attention_weights as attention_weights,
)
from keras_rfa.ops.feature_maps import feature_map as feature_map
from keras_rfa.ops.linear_attention import encode_state as encode_state
from keras_rfa.ops.linear_attention import linear_attention as linear_attention
from keras_rfa.ops.linear_attention import read_state as read_state
from keras_rfa.ops.state import check_state as check_state
from keras_rfa.ops.state import zero_state as zero_state
