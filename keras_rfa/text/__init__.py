"""From strings to token ids, all on TensorFlow: in graphs and SavedModels."""

from keras_rfa.text.buckets import bucket_batches as bucket_batches
from keras_rfa.text.tokenizers import ByteTokenizer as ByteTokenizer
from keras_rfa.text.tokenizers import WordpieceTokenizer as WordpieceTokenizer
from keras_rfa.text.vocabulary import learn_vocabulary as learn_vocabulary
