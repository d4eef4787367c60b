"""How the next token is chosen."""

from typing import Any

import keras
from keras import ops

from keras_rfa.generation import keras_hub_samplers
from keras_rfa.ops.checks import check_number

Tensor = Any


class Temperature:
    """Chooses a token with the probability that the model gives it.

    The logits are divided by the temperature first: below 1 what is probable
    becomes more probable, and towards 0 it is the greedy choice.

    Args:
        value: float above 0, the temperature. `Temperature(1.0)` is what the
            name `"random"` means.
        seed: int. Where the random numbers begin, for a call that gives no
            `seed`. `None` means anywhere.

    Raises:
        ValueError: if `value` is not a finite number above 0.

    Example:

    >>> sampler = keras_rfa.generation.Temperature(0.7)
    >>> keras_rfa.generation.generate(model, [[5, 2]], 20, sampler=sampler)
    """

    def __init__(self, value: float = 1.0, seed: int | None = None) -> None:
        self.value = check_number("value", value)
        if self.value == 0:
            raise ValueError(
                "`value` must be above 0. For a temperature of 0 pass "
                f'`sampler="greedy"`. Received: value={value!r}'
            )
        self.seed_generator = keras.random.SeedGenerator(seed)

    @property
    def variables(self) -> list[Any]:
        """The variables that change with each choice."""
        return [self.seed_generator.state]

    @property
    def key(self) -> Any:
        """What tells it from samplers that choose otherwise."""
        return "temperature", self.value

    def next_token(self, logits: Tensor) -> Tensor:
        """Returns a token `(b,)` for each row of logits `(b, v)`."""
        token = keras.random.categorical(
            logits / self.value, 1, dtype="int32", seed=self.seed_generator
        )
        return ops.squeeze(token, axis=-1)


class Greedy:
    """Chooses the most probable token."""

    variables: tuple[Any, ...] = ()
    key = "greedy"

    def next_token(self, logits: Tensor) -> Tensor:
        """Returns a token `(b,)` for each row of logits `(b, v)`."""
        return ops.argmax(logits, axis=-1)


def sampler_of(sampler: Any) -> Any:
    """Returns what `sampler` names.

    Args:
        sampler: string, `Temperature`, or a sampler of keras_hub.

    Returns:
        An object with `variables`, a `key` for programs, and `next_token` or,
        if it is a `keras_hub_samplers.Beams`, `search`.

    Raises:
        ValueError: if it is another object or name, or chooses neither token
            by token nor by beams.
        ImportError: if keras_hub is needed and missing.
    """
    if isinstance(sampler, Temperature):
        return sampler
    if isinstance(sampler, str):
        if sampler == "greedy":
            return Greedy()
        if sampler == "random":
            return Temperature()
        if sampler in keras_hub_samplers.NAMES:
            return keras_hub_samplers.named(sampler)
    elif (found := keras_hub_samplers.adapted(sampler)) is not None:
        return found
    names = ", ".join(f'"{name}"' for name in keras_hub_samplers.NAMES)
    raise ValueError(
        '`sampler` must be "greedy", "random", a '
        f"`keras_rfa.generation.Temperature`, one of {names} (with keras_hub), "
        "or an object of `keras_hub.samplers` that chooses token by token or "
        "by beams, which contrastive and speculative samplers do not. "
        f"Received: sampler={sampler!r}"
    )
