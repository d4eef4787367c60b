from collections.abc import Callable
from typing import Any

import keras


class CompositeLayer(keras.layers.Layer):
    """A layer around dense layers, for what Keras does to whole models.

    The base of the attention layers and of the blocks.

    `Model.quantize` gives each dense layer other weights. What the layer was
    built with is kept in files, and tells there which ones those are.

    A `keras.RematScope` wraps neither the call, in which matrices are drawn
    (the backward pass would draw other ones), nor the layers inside. These
    layers compute again by themselves what is large and draws nothing.

    Args:
        **kwargs: for `keras.layers.Layer`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.quantized: dict[str, Any] = {}

    def dense_layers(self) -> list[keras.layers.Layer]:
        """Returns the dense layers of its own, which have been built."""
        raise NotImplementedError  # abstract: each subclass has others

    def dense_policy(self, name: str, policy: Any) -> dict[str, Any]:
        """Returns the arguments of a dense layer that say how it computes.

        Args:
            name: string. The name of the dense layer.
            policy: its dtype policy, unless it comes quantised from a file.
        """
        if name not in self.quantized:
            return {"dtype": policy}
        return {
            argument: keras.saving.deserialize_keras_object(config)
            for argument, config in self.quantized[name].items()
        }

    def get_build_config(self) -> dict[str, Any] | None:
        config = super().get_build_config()
        if config is None:
            return None
        quantized = {}
        for layer in self.dense_layers():
            if layer.quantization_mode is not None:
                arguments = layer.get_config()
                quantized[layer.name] = {
                    name: arguments[name]
                    for name in ("dtype", "quantization_config")
                }
        return {**config, "quantized": quantized} if quantized else config

    def build_from_config(self, config: dict[str, Any]) -> None:
        self.quantized = config.get("quantized", {})
        super().build_from_config(config)

    def rematerialized_call(
        self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Callable[..., Any]:
        """Returns what to call; asked of layers made in a `RematScope`."""
        return layer_call

    def rematerialized_part(
        self, part: Callable[..., Any], *args: Any
    ) -> Callable[..., Any]:
        """Returns a part of the call as the `RematScope` wants it called.

        Args:
            part: function that draws nothing at random.
            *args: its arguments.
        """
        return super().rematerialized_call(part, *args)
