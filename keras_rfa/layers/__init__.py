"""Keras layers of linear-time attention, and transformer blocks around it."""

from keras_rfa.layers.cached_softmax_attention import (
    CachedSoftmaxAttention as CachedSoftmaxAttention,
)
from keras_rfa.layers.cross_random_feature_attention import (
    CrossRandomFeatureAttention as CrossRandomFeatureAttention,
)
from keras_rfa.layers.gated_random_feature_attention import (
    GatedRandomFeatureAttention as GatedRandomFeatureAttention,
)
from keras_rfa.layers.masked_average_pooling import (
    MaskedAveragePooling as MaskedAveragePooling,
)
from keras_rfa.layers.random_feature_attention import (
    RandomFeatureAttention as RandomFeatureAttention,
)
from keras_rfa.layers.random_projection_pool import (
    RandomProjectionPool as RandomProjectionPool,
)
from keras_rfa.layers.short_convolution import (
    ShortConvolution as ShortConvolution,
)
from keras_rfa.layers.sinusoidal_positions import (
    SinusoidalPositions as SinusoidalPositions,
)
from keras_rfa.layers.spread_memory import SpreadMemory as SpreadMemory
from keras_rfa.layers.transformer_decoder import (
    TransformerDecoder as TransformerDecoder,
)
from keras_rfa.layers.transformer_encoder import (
    TransformerEncoder as TransformerEncoder,
)
