"""Times and memory of reading a document at once and window by window.

    KERAS_BACKEND=jax python examples/benchmarks/windows.py
    KERAS_BACKEND=tensorflow python examples/benchmarks/windows.py

A training step of a gated causal classifier of one document, compiled by XLA:
two layers of width 128, four heads. A time is the median of the runs, both
models in turn; memory is what XLA plans for temporaries.
"""

import argparse

import keras
import numpy as np
from attention import VOCABULARY
from measuring import (
    BACKEND,
    WORKS,
    compile_program,
    dump_plans,
    median_seconds,
)

import keras_rfa

WORK = WORKS[2]


def main() -> None:
    """Prints a row for each length."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", default=[4096, 16384, 65536])
    add("--window", type=int, default=1024)
    add("--runs", type=int, default=3)
    options = parser.parse_args()
    if BACKEND not in ("jax", "tensorflow"):
        parser.error("run it with KERAS_BACKEND=jax or tensorflow")
    dump_plans()
    windows = None, options.window
    print(
        f"{BACKEND}, {WORK}\n\n"
        f"| tokens | at once ms | MB | window {options.window:,} ms | MB "
        "| window / at once, time | memory |\n"
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for length in options.lengths:
        ids = np.random.default_rng(0).integers(1, VOCABULARY, (1, length))
        inputs = (ids.astype("int32"),)
        programs = {
            window: compile_program(make_classifier(window), inputs, {}, WORK)
            for window in windows
        }
        seconds = median_seconds(
            {window: run for window, (run, _) in programs.items()},
            options.runs,
        )
        whole, parts = seconds.values()
        plan, part_plan = (memory for _, memory in programs.values())
        print(
            f"| {length:,} | {whole * 1e3:,.0f} | {plan / 1e6:,.0f} "
            f"| {parts * 1e3:,.0f} | {part_plan / 1e6:,.0f} "
            f"| {parts / whole:.2f} | {part_plan / plan:.3f} |",
            flush=True,
        )


def make_classifier(window: int | None) -> keras.Model:
    """Builds the classifier that both ways of reading share."""
    keras.utils.set_random_seed(0)
    model = keras_rfa.models.document_classifier(
        VOCABULARY,
        2,
        num_layers=2,
        hidden_dim=128,
        num_heads=4,
        intermediate_dim=512,
        attention="rfa_gated",
        causal=True,
        window=window,
    )
    model.optimizer = keras.optimizers.Adam()
    model.optimizer.build(model.trainable_variables)
    return model


if __name__ == "__main__":
    main()
