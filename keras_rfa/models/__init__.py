"""Functional models made of the layers."""

from keras_rfa.models.document_classifier import (
    document_classifier as document_classifier,
)
from keras_rfa.models.document_encoder import (
    document_encoder as document_encoder,
)
from keras_rfa.models.language_model import LanguageModel as LanguageModel
from keras_rfa.models.language_model import language_model as language_model
from keras_rfa.models.token_ids import check_token_ids as check_token_ids
from keras_rfa.models.translator import Translator as Translator
from keras_rfa.models.translator import translator as translator
