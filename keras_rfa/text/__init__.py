"""From strings to token ids, on TensorFlow: in graphs and SavedModels.

`TokenRows`, which cuts ids that are there, needs no TensorFlow.
"""

from keras_rfa.text.buckets import bucket_batches as bucket_batches
from keras_rfa.text.sentencepiece import (
    SentencePieceTokenizer as SentencePieceTokenizer,
)
from keras_rfa.text.sentencepiece import (
    learn_sentencepiece as learn_sentencepiece,
)
from keras_rfa.text.token_rows import TokenRows as TokenRows
from keras_rfa.text.tokenizers import ByteTokenizer as ByteTokenizer
from keras_rfa.text.tokenizers import WordpieceTokenizer as WordpieceTokenizer
from keras_rfa.text.vocabulary import learn_vocabulary as learn_vocabulary
