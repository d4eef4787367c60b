"""Shows how the floor of the denominator changes random feature attention.

    python examples/benchmarks/epsilon.py --plot examples/benchmarks/epsilon.png

Queries and keys are random unit vectors, values are gaussian, and `D` is 64,
as is the width. For each feature map and each floor it compares the outputs
with those of the kernel that the features estimate: the error relative to the
values (root mean square), and the largest output relative to the largest
value. Exact attention never exceeds 1 there; what does exceed it is division
by noise, and what falls short is bias towards zero.
"""

import argparse
import pathlib
from typing import Any

import keras
import numpy as np

import keras_rfa
from keras_rfa.ops import feature_map, linear_attention

WIDTH, FEATURES, HEADS, STEPS = 64, 64, 16, 1024
FLOORS = np.logspace(-7, 0, 15)
KINDS = ("gaussian", "arccos", "positive", "elu")
# How alike queries and keys are (their mean cosine), sigma, and for how many
# steps a gate remembers.
SETTINGS = {
    "sigma 1, cosine 0": (0.0, 1.0, None),
    "sigma 2, cosine 0": (0.0, 2.0, None),
    "sigma 2, cosine 1/2": (0.5, 2.0, None),
    "the same, gate 1 - 1/16": (0.5, 2.0, 16),
}


def main() -> None:
    """Prints the figures and draws them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plot", type=pathlib.Path)
    arguments = parser.parse_args()
    results = {}
    for setting, (cosine, sigma, memory) in SETTINGS.items():
        for kind in KINDS:
            results[setting, kind] = sweep(kind, cosine, sigma, memory)
            errors, largest = results[setting, kind]
            best = FLOORS[int(np.argmin(errors))]
            print(f"{setting}, {kind}: least error at epsilon {best:.0e}")
            for floor, error, top in zip(FLOORS, errors, largest, strict=True):
                print(f"  {floor:8.1e}  error {error:9.4f}  largest {top:9.3f}")
    if arguments.plot:
        draw(results, arguments.plot)


def sweep(kind: str, cosine: float, sigma: float, memory: int | None) -> Any:
    """Returns errors and largest outputs, one for each floor."""
    random = np.random.default_rng(0)
    shape = (1, STEPS, HEADS, WIDTH)
    common = random.normal(size=(1, 1, HEADS, WIDTH))
    common *= np.sqrt(cosine / (1 - cosine))
    q, k = (unit(random.normal(size=shape) + common) for _ in range(2))
    v = random.normal(size=shape)
    projection = random.normal(size=(HEADS, FEATURES, WIDTH))
    tensors = [keras.ops.cast(x, "float32") for x in (q, k, projection)]
    scale = keras.ops.full((HEADS, WIDTH), sigma, "float32")
    features = [
        feature_map(x, tensors[2], kind, scale=scale) for x in tensors[:2]
    ]
    gate = None
    if memory is not None:
        gate = keras.ops.full((1, STEPS, HEADS), np.log(memory - 1), "float32")
    exact = exact_attention(kind, q, k, v, sigma, memory)
    errors, largest = [], []
    for floor in FLOORS:
        outputs = keras.ops.convert_to_numpy(
            linear_attention(
                *features,
                keras.ops.cast(v, "float32"),
                causal=True,
                gate_logits=gate,
                epsilon=float(floor),
            )
        )
        errors.append(np.sqrt(np.mean((outputs - exact) ** 2) / np.mean(v**2)))
        largest.append(np.abs(outputs).max() / np.abs(v).max())
    return errors, largest


def exact_attention(
    kind: str, q: Any, k: Any, v: Any, sigma: float, memory: int | None
) -> Any:
    """Attends with the kernel itself, in float64 and quadratic time."""
    products = np.einsum("bthd,bshd->bhts", q, k)
    if kind == "gaussian":
        weights = np.exp(sigma**2 * (products - 1))
    elif kind == "positive":
        weights = np.exp(sigma**2 * products / np.sqrt(WIDTH))
    elif kind == "arccos":
        angle = np.arccos(np.clip(products, -1, 1))
        weights = np.sin(angle) + (np.pi - angle) * np.cos(angle)
    else:
        q, k = (np.where(x > 0, x + 1, np.exp(x)) for x in (q, k))
        weights = np.einsum("bthd,bshd->bhts", q, k)
    step = np.arange(STEPS)
    age = step[:, None] - step[None, :]
    gate = 1 - 1 / memory if memory else 1.0
    weights = weights * np.where(age >= 0, gate ** np.maximum(age, 0), 0)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhts,bshe->bthe", weights, v)


def unit(x: Any) -> Any:
    """Divides by the length."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def draw(results: dict[Any, Any], path: pathlib.Path) -> None:
    """Draws the figures, with the default of each map as a dot."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        2, len(SETTINGS), figsize=(15, 6.5), sharex=True, sharey="row"
    )
    for column, setting in enumerate(SETTINGS):
        for kind in KINDS:
            default = keras_default(kind)
            for row, figures in enumerate(results[setting, kind]):
                panel = panels[row, column]
                (line,) = panel.loglog(FLOORS, figures, label=kind)
                at_default = np.interp(
                    np.log(default), np.log(FLOORS), np.log(figures)
                )
                panel.plot(default, np.exp(at_default), "o", c=line.get_color())
        panels[0, column].set_title(setting)
        panels[1, column].set_xlabel("epsilon (dot: the layer's default)")
        panels[1, column].axhline(1, color="gray", linewidth=0.8)
    panels[0, 0].set_ylabel("error / values, rms")
    panels[1, 0].set_ylabel("largest output / largest value")
    panels[0, 0].legend()
    for panel in panels.flat:
        panel.grid(alpha=0.3)
    figure.suptitle(
        f"Causal attention of {STEPS} steps, D = {FEATURES}, against the "
        "kernel that the features estimate"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def keras_default(kind: str) -> float:
    """Returns the floor that a layer uses unless told otherwise."""
    layer = keras_rfa.layers.RandomFeatureAttention(1, 8, feature_map=kind)
    return float(layer.epsilon)


if __name__ == "__main__":
    main()
