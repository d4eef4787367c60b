"""Samplers of keras_hub, which is loaded when one is asked for."""

import sys
from typing import Any

Tensor = Any

NAMES = ("top_k", "top_p", "beam")


class Tokens:
    """A sampler that looks at one step only.

    Args:
        sampler: a `keras_hub.samplers.Sampler`.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    @property
    def variables(self) -> list[Any]:
        """The variables that change with each choice."""
        return self.sampler.variables

    @property
    def key(self) -> Any:
        """What tells it from samplers that choose otherwise."""
        return _key(self.sampler)

    def next_token(self, logits: Tensor) -> Tensor:
        """Returns a token `(b,)` for each row of logits `(b, v)`."""
        probabilities = self.sampler.compute_probabilities(logits)
        return self.sampler.get_next_token(probabilities)


class Beams:
    """A sampler that keeps several beginnings of each row.

    Args:
        sampler: a `keras_hub.samplers.BeamSampler`.
    """

    variables: tuple[Any, ...] = ()

    def __init__(self, sampler: Any) -> None:
        if sampler.return_all_beams:
            raise ValueError(
                "Only the best beam of each row is returned. Build the "
                "sampler without it. Received: return_all_beams=True"
            )
        self.sampler = sampler

    @property
    def key(self) -> Any:
        """What tells it from samplers that choose otherwise."""
        return _key(self.sampler)

    def search(self, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the best beam of each row."""
        return self.sampler(*args, **kwargs)


def named(name: str) -> Any:
    """Returns the sampler of a name, adapted.

    Raises:
        ImportError: if keras_hub is missing.
    """
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            f"The sampler {name!r} is one of keras_hub, which cannot be "
            f"imported: {error}. Install it with `pip install "
            '"keras_rfa[generation]"`, or pass `sampler="greedy"`, "random" or '
            "a `keras_rfa.generation.Temperature`."
        ) from error
    return adapted(keras_hub.samplers.get(name))


def adapted(sampler: Any) -> Any:
    """Returns `Tokens` or `Beams` around a sampler, or `None` for others."""
    if "keras_hub" not in sys.modules:  # so that it is none of its objects
        return None
    from keras_hub import samplers

    if not isinstance(sampler, samplers.Sampler):
        return None
    call = type(sampler).__call__
    if call is samplers.BeamSampler.__call__:
        return Beams(sampler)
    return Tokens(sampler) if call is samplers.Sampler.__call__ else None


def _key(sampler: Any) -> Any:
    """Returns what tells it from samplers that choose otherwise."""
    config = {**sampler.get_config(), "seed": None}
    settings = repr(sorted(config.items()))
    if type(sampler).__module__.startswith("keras_hub."):
        return type(sampler), settings
    # The configuration of a user's own class may be incomplete.
    return id(sampler), settings
