"""Linear-time attention for Keras 3."""

from keras_rfa import callbacks as callbacks
from keras_rfa import export as export
from keras_rfa import generation as generation
from keras_rfa import layers as layers
from keras_rfa import models as models
from keras_rfa import ops as ops
from keras_rfa import text as text
from keras_rfa.text_classifier import TextClassifier as TextClassifier

__version__ = "0.1.0"
