"""Times softmax attention and random feature attention side by side.

    KERAS_BACKEND=jax python examples/benchmarks/attention.py
    KERAS_BACKEND=tensorflow python examples/benchmarks/attention.py

Each row is measured in one process, all variants in turn, compiled by XLA. A
time is the median of the runs, in milliseconds; a ratio compares medians.
Memory is what XLA plans for temporaries. Below the forward passes stands how
fast `rfa` does its matrix products, all its time counted, beside a large matrix
product of the same process.
"""

import argparse
import pathlib
from typing import Any

import keras
import numpy as np
from measuring import (
    BACKEND,
    WORKS,
    compile_program,
    dump_plans,
    matrix_product_speed,
    median_seconds,
)

import keras_rfa

WIDTH, HEADS, FEATURES, LAYERS = 256, 4, 64, 4
VOCABULARY = 8192
TOKENS = 4096  # in a batch, where one document has fewer

# Each variant of random feature attention, and what it replaces.
BASELINES = {
    "rfa": "softmax",
    "rfa causal": "softmax causal",
    "rfa gated": "softmax causal",
}
VARIANTS = ("softmax", "softmax causal", *BASELINES)


def main() -> None:
    """Prints a table for each kind of work, and draws the times."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 16384]
    )
    parser.add_argument(
        "--works", nargs="+", choices=WORKS, default=WORKS, metavar="WORK"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--memory-gb",
        type=float,
        default=10.0,
        help="leave out softmax where its maps of scores would need more",
    )
    parser.add_argument("--plot", type=pathlib.Path, help="a PNG to write")
    arguments = parser.parse_args()
    if BACKEND not in ("jax", "tensorflow"):
        parser.error("run it with KERAS_BACKEND=jax or tensorflow")
    dump_plans()
    limit = matrix_product_speed()
    print(
        f"{BACKEND}, {LAYERS} layers of width {WIDTH}, {HEADS} heads, "
        f"D = {FEATURES}, batches of {TOKENS} tokens or one document; "
        f"matrix products: {limit:.0f} GFLOP/s",
        flush=True,
    )
    results = {}
    for work in arguments.works:
        print_head(work)
        for length in arguments.lengths:
            measured = measure(
                work, length, arguments.runs, arguments.memory_gb * 1e9
            )
            results[work, length] = measured
            print_row(length, measured)
        if "forward" in work:
            print("\nrfa, share of the speed of matrix products:")
            for length in arguments.lengths:
                seconds, _ = results[work, length]["rfa"]
                share = products_of_rfa(length) / seconds / limit
                print(f"  {length} tokens: {share:.0%}")
    if arguments.plot:
        draw(results, arguments.plot)


def measure(work: str, length: int, runs: int, memory: float) -> dict[str, Any]:
    """Returns median seconds and bytes of temporaries of each variant."""
    rows = rows_of_batch(length)
    # A gradient holds about three maps of scores at once, a forward two, and a
    # training step two of each layer more.
    maps = 2 if "forward" in work else 3
    maps += 2 * LAYERS if "step" in work else 0
    scores = maps * rows * HEADS * length**2 * 4
    programs = {
        variant: make_program(work, variant, rows, length)
        for variant in VARIANTS
        if not (variant.startswith("softmax") and scores > memory)
    }
    seconds = median_seconds(
        {variant: run for variant, (run, _) in programs.items()}, runs
    )
    return {
        variant: (seconds[variant], bytes_of_temporaries)
        for variant, (_, bytes_of_temporaries) in programs.items()
    }


def rows_of_batch(length: int) -> int:
    """Returns how many documents of a length are computed at once."""
    return max(1, TOKENS // length)


def make_program(work: str, variant: str, rows: int, length: int) -> Any:
    """Compiles one piece of work; returns a function and its memory."""
    random = np.random.default_rng(0)
    if "classifier" in work:
        model = make_classifier(variant)
        ids = random.integers(1, VOCABULARY, (rows, length), "int32")
        return compile_program(model, (ids,), {}, work)
    layer = make_attention(variant)
    x = random.normal(size=(rows, length, WIDTH)).astype("float32")
    causal = {} if variant in ("softmax", "rfa") else {"use_causal_mask": True}
    layer.build(x.shape, x.shape)
    return compile_program(layer, (x, x), causal, work)


def make_attention(variant: str) -> keras.layers.Layer:
    """Builds the attention layer of a variant."""
    key_dim = WIDTH // HEADS
    if variant.startswith("softmax"):
        return keras.layers.MultiHeadAttention(HEADS, key_dim)
    name = "GatedRandomFeatureAttention"
    if variant != "rfa gated":
        name = "RandomFeatureAttention"
    layer = getattr(keras_rfa.layers, name)
    return layer(HEADS, key_dim, num_features=FEATURES)


def make_classifier(variant: str) -> keras.Model:
    """Builds a classifier; causal variants stand in decoder blocks."""
    block = keras_rfa.layers.TransformerDecoder
    if variant in ("softmax", "rfa"):
        block = keras_rfa.layers.TransformerEncoder
    ids = keras.Input((None,), dtype="int32")
    # Without a mask, which nothing here needs: to fold that of causal softmax
    # takes XLA on TensorFlow hours at 4,096 tokens.
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(ids)
    for _ in range(LAYERS):
        x = block(make_attention(variant), 4 * WIDTH)(x)
    x = keras_rfa.layers.MaskedAveragePooling()(x)
    model = keras.Model(ids, keras.layers.Dense(2)(x))
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    model.optimizer = optimizer
    return model


def products_of_rfa(length: int) -> float:
    """Returns the GFLOP of the products of a forward pass over a batch."""
    tokens = rows_of_batch(length) * length
    dense = 4 * WIDTH * WIDTH
    key_dim = WIDTH // HEADS
    features = 2 * HEADS * key_dim * FEATURES
    # Sines and cosines by values and one more column, and read again.
    sums = 2 * HEADS * 2 * FEATURES * (key_dim + 1)
    return 2 * tokens * (dense + features + sums) / 1e9


def print_head(work: str) -> None:
    """Prints the head of a table."""
    columns = [f"{v} ms | MB" for v in VARIANTS]
    columns += [f"{v} / {b}" for v, b in BASELINES.items()]
    print(f"\n{work}: time and memory, and how many times as fast\n")
    print("| tokens | " + " | ".join(columns) + " |")
    print("| ---: " * (1 + 2 * len(VARIANTS) + len(BASELINES)) + "|")


def print_row(length: int, measured: dict[str, Any]) -> None:
    """Prints a row; a variant that was left out is a dash."""
    cells = []
    for variant in VARIANTS:
        seconds, memory = measured.get(variant, (None, None))
        cells += ["-", "-"]
        if seconds is not None:
            cells[-2:] = [f"{seconds * 1e3:.1f}", f"{memory / 1e6:.0f}"]
    for variant, baseline in BASELINES.items():
        ratio = "-"
        if baseline in measured:
            ratio = f"{measured[baseline][0] / measured[variant][0]:.2f}"
        cells.append(ratio)
    print(f"| {length} | " + " | ".join(cells) + " |", flush=True)


def draw(results: dict[Any, Any], path: pathlib.Path) -> None:
    """Draws time against length, one panel for each kind of work."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib import ticker

    works = list(dict.fromkeys(work for work, _ in results))
    figure, panels = plt.subplots(
        1, len(works), figsize=(5 * len(works), 4), squeeze=False
    )
    for work, panel in zip(works, panels[0], strict=True):
        for variant in VARIANTS:
            points = [
                (length, found[variant][0] * 1e3)
                for (name, length), found in results.items()
                if name == work and variant in found
            ]
            style = "--" if variant.startswith("softmax") else "-"
            panel.loglog(*zip(*points, strict=True), style, label=variant)
        lengths = sorted({length for _, length in results})
        panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        for axis in panel.xaxis, panel.yaxis:
            axis.set_minor_locator(ticker.NullLocator())
        panel.set(title=work, xlabel="tokens of a document", ylabel="ms")
        panel.grid(alpha=0.3)
    panels[0][0].legend()
    figure.suptitle(
        f"{BACKEND}, width {WIDTH}, {HEADS} heads, D = {FEATURES}, "
        f"batches of {TOKENS:,} tokens or one document"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
