"""Linear-time attention for Keras 3."""

from keras_rfa import layers as layers
from keras_rfa import models as models
from keras_rfa import ops as ops

__version__ = "0.1.0"
