"""What the fuzzing tests draw: programs, and the numbers to put into them.

A program is what a compiler compiles: a form, shapes, dtypes and options.
Where the backend compiles, programs come from a list of some tens, so that
thousands of calls compile tens of times; elsewhere each call has its own.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import keras
import ml_dtypes
import numpy as np
from hypothesis import strategies as st

Array = Any

FORMS = (
    "bidirectional",
    "cross",
    "causal",
    "gated",
    "two_sided",
    "encoded",  # to a state, which is then read
    "continued",  # causal, in two blocks
    "gated_continued",
)
CAUSAL = ("causal", "gated", "continued", "gated_continued")
GATED = ("gated", "two_sided", "gated_continued")
CHUNK_SIZES = (1, 2, 3, 4, 7, 8, 16, 31, 64, 128, 130, None)
DTYPES = ("float32", "bfloat16", "float16")


def calls(share: int) -> Any:
    """Returns settings with a multiple of the examples of the profile."""
    return hypothesis.settings(max_examples=share * _examples())


def _examples() -> int:
    return hypothesis.settings().max_examples


def compiles() -> bool:
    """Returns whether a new shape costs a compilation."""
    return keras.backend.backend() == "jax"


@dataclass(frozen=True)
class Program:
    """One form of attention, its shapes and its options."""

    form: str
    batch: int
    heads: int
    width: int  # of features
    value_width: int
    queries: int
    keys: int
    chunk_size: int | None
    dtype: str
    epsilon: float
    masked: bool
    weighted: bool
    continues: bool

    @property
    def causal(self) -> bool:
        """Whether a query sees the keys up to its own step only."""
        return self.form in CAUSAL

    @property
    def gated(self) -> bool:
        """Whether it has gates."""
        return self.form in GATED

    @property
    def has_state(self) -> bool:
        """Whether it can take and return a state."""
        return self.form != "two_sided"


def one_row(form: str, steps: int, **changes: Any) -> Program:
    """Returns a program of one row and one head, of width 1."""
    program = Program(
        form=form,
        batch=1,
        heads=1,
        width=1,
        value_width=1,
        queries=steps,
        keys=steps,
        chunk_size=None,
        dtype="float32",
        epsilon=1e-3,
        masked=False,
        weighted=False,
        continues=False,
    )
    return replace(program, **changes)


def _program(choose: Any) -> Program:
    """Makes a program of choices from tuples."""
    form = choose(FORMS)
    chunk_size = choose(CHUNK_SIZES)
    c = chunk_size or 128
    keys = choose((1, c - 1, c, c + 1, 3 * c + 5, 0))
    small = keys <= 100
    queries = choose((1, 2, 9)) if form in ("cross", "encoded") else keys
    return Program(
        form=form,
        batch=choose((1, 2, 3) if small else (1, 2)),
        heads=choose((1, 2, 3) if small else (1,)),
        width=choose((1, 2, 4, 16)),
        value_width=choose((1, 3, 8)),
        queries=queries,
        keys=keys,
        chunk_size=chunk_size,
        dtype=choose(DTYPES),
        epsilon=choose((1e-3, 0.1, 1.0, 1e-6)),
        masked=choose((False, True)),
        weighted=choose((False, True)),
        continues=choose((False, True)) and form != "two_sided",
    )


@functools.cache
def _listed(make: Any, count: int) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    return tuple(
        make(lambda options: options[random.integers(len(options))])
        for _ in range(count)
    )


@st.composite
def drawn_program(draw: Any, make: Any, least: int = 16) -> Any:
    """Draws a program.

    Args:
        make: function that makes one, from a function that chooses one of
            several options.
        least: int. How many there are at least, where they are compiled.
    """
    if compiles():
        return draw(st.sampled_from(_listed(make, least + _examples() // 8)))
    return make(lambda options: draw(st.sampled_from(options)))


def rounded(x: Array, dtype: str) -> Array:
    """Rounds to what a dtype can hold."""
    return np.asarray(
        x, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    ).astype("float32")


@dataclass(frozen=True)
class Numbers:
    """What to put into a program: kinds of numbers, and a seed."""

    seed: int
    features: str
    value_size: float
    gates: str
    lowest_logit: int
    highest_logit: int
    weights: str
    mask: str


@st.composite
def attention_calls(draw: Any) -> tuple[Program, Numbers]:
    """Draws a program of `linear_attention` and its numbers."""
    program = draw(drawn_program(_program))
    logit = st.integers(-80, 80)
    low, high = sorted((draw(logit), draw(logit)))
    # Behind shut gates only what enters is left, so it may not be nothing.
    weights = tuple(WEIGHTS)[: 2 if program.gated else 3]
    return program, Numbers(
        seed=draw(st.integers(0, 2**31)),
        features=draw(st.sampled_from(tuple(FEATURES))),
        value_size=draw(st.sampled_from((1.0, 1e4, 1e-20, 0.0))),
        gates=draw(st.sampled_from(tuple(GATES))),
        lowest_logit=low,
        highest_logit=high,
        weights=draw(st.sampled_from(weights)),
        mask=draw(st.sampled_from(tuple(MASKS))),
    )


def attention_arrays(program: Program, numbers: Numbers) -> dict[str, Any]:
    """Returns the arguments of a call, float32 arrays."""
    random = np.random.default_rng(numbers.seed)
    features = FEATURES[numbers.features]
    rows = program.batch, program.keys, program.heads
    queries = program.batch, program.queries, program.heads
    value = random.normal(size=(*rows, program.value_width))
    arrays: dict[str, Any] = {
        "query_features": features(random, (*queries, program.width)),
        "key_features": features(random, (*rows, program.width)),
        "value": numbers.value_size * value,
    }
    arrays = {name: rounded(x, program.dtype) for name, x in arrays.items()}
    if program.gated:
        limits = numbers.lowest_logit, numbers.highest_logit
        gates = GATES[numbers.gates](random, rows, *limits)
        arrays["gate_logits"] = gates.astype("float32")
    if program.weighted:
        weight = WEIGHTS[numbers.weights](random, rows)
        arrays["key_weight"] = weight.astype("float32")
    if program.masked:
        arrays["key_mask"] = MASKS[numbers.mask](random, rows[:2])
        for name in ("key_features", "value"):
            arrays[name][~arrays["key_mask"]] = 6e4  # what is masked
    if program.continues:
        arrays["initial_state"] = _state(random, program, features)
    return arrays


def _per_step(random: Any, shape: Any) -> Array:
    scale = 10.0 ** random.integers(-4, 4, size=(*shape[:-1], 1))
    return scale * np.abs(random.normal(size=shape))


def _rarely(random: Any, shape: Any) -> Array:
    return np.abs(random.normal(size=shape)) * (random.random(shape) < 0.2)


FEATURES = {
    "positive": lambda random, shape: np.abs(random.normal(size=shape)),
    "signed": lambda random, shape: random.normal(size=shape),
    "unit": lambda random, shape: (
        random.choice([-1.0, 1.0], size=shape) / shape[-1] ** 0.5
    ),
    "large": lambda random, shape: 1e4 * np.abs(random.normal(size=shape)),
    "small": lambda random, shape: 1e-20 * np.abs(random.normal(size=shape)),
    "of many sizes": _per_step,
    "mostly zero": _rarely,
    "zero": lambda random, shape: np.zeros(shape),
}


def _rarely_low(random: Any, shape: Any, low: int, high: int) -> Array:
    return np.where(random.random(shape) < 0.05, low, high)


def _alternating(random: Any, shape: Any, low: int, high: int) -> Array:
    odd = np.arange(shape[1])[:, None] % 2
    return np.where(odd, low, high) + np.zeros(shape)


def _low_then_high(random: Any, shape: Any, low: int, high: int) -> Array:
    late = np.arange(shape[1])[:, None] > 0.7 * shape[1]
    return np.where(late, high, low) + 0.1 * random.normal(size=shape)


GATES = {
    "moderate": lambda random, shape, low, high: 2 * random.normal(size=shape),
    "open": lambda random, shape, low, high: 4 + random.normal(size=shape),
    "between": lambda random, shape, low, high: random.uniform(
        low, high, size=shape
    ),
    "rarely low": _rarely_low,
    "alternating": _alternating,
    "low, then high": _low_then_high,
    "one": lambda random, shape, low, high: np.full(shape, low),
}

WEIGHTS = {
    "around one": lambda random, shape: random.uniform(0.01, 2, size=shape),
    "of many sizes": lambda random, shape: np.exp(
        random.uniform(-10, 30, size=shape)
    ),
    "some zero": lambda random, shape: random.integers(0, 2, size=shape),
}


def _one(random: Any, shape: Any) -> Array:
    mask = np.zeros(shape, bool)
    if mask.size:
        mask[:, random.integers(shape[1])] = True
    return mask


def _alternate(random: Any, shape: Any) -> Array:
    return np.zeros(shape, bool) | (np.arange(shape[1]) % 2 == 0)


def _rows(random: Any, shape: Any) -> Array:
    lengths = random.integers(0, shape[1] + 1, size=shape[0])
    return np.arange(shape[1]) < lengths[:, None]


MASKS = {
    "random": lambda random, shape: random.random(shape) < 0.5,
    "of lengths": _rows,
    "none true": lambda random, shape: np.zeros(shape, bool),
    "one true": _one,
    "alternating": _alternate,
    "all true": lambda random, shape: np.ones(shape, bool),
}


def _state(random: Any, program: Program, features: Any) -> Any:
    """Returns what some earlier keys left."""
    heads = program.batch, program.heads
    k = features(random, (*heads, 3, program.width))
    v = random.normal(size=(*heads, 3, program.value_width))
    return {
        "s": np.einsum("bhsm,bhse->bhme", k, v).astype("float32"),
        "z": k.sum(2).astype("float32"),
        "weight": np.full(heads, 3, "float32"),
    }
