"""Serving: files that run where `keras_rfa` is not installed."""

from keras_rfa.export.classifier import export_classifier as export_classifier
from keras_rfa.export.language_model import (
    export_language_model as export_language_model,
)
from keras_rfa.export.new_directory import new_directory as new_directory
from keras_rfa.export.portable_files import export_litert as export_litert
from keras_rfa.export.portable_files import export_onnx as export_onnx
from keras_rfa.export.serving_model import (
    clone_for_serving as clone_for_serving,
)
from keras_rfa.export.translator import export_translator as export_translator
