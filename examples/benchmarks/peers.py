"""Times linear attentions of other packages beside ours and softmax.

    pip install tf-models-official tf-keras
    KERAS_BACKEND=tensorflow python examples/benchmarks/peers.py
    pip install performer-pytorch
    KERAS_BACKEND=torch python examples/benchmarks/peers.py

With TensorFlow `KernelAttention` of the TensorFlow Model Garden, compiled by
XLA as ours is; with torch `SelfAttention` of performer-pytorch, both op by op.
Each row is measured in one process, all variants in turn: a layer of width
256, forward and with its gradients, in milliseconds, the median of the runs.
All maps have 128 features a head. Causal, performer-pytorch takes what it calls
its memory inefficient version where `fast_transformers` has no CUDA code, as on
a CPU; its dense maps into heads have no bias.
"""

import argparse
import contextlib
import sys
from typing import Any

import numpy as np
from attention import (
    FEATURES,
    HEADS,
    WIDTH,
    make_attention,
    rows_of_batch,
)
from measuring import BACKEND, WORKS, compile_program, median_seconds

KEY_DIM = WIDTH // HEADS


def main() -> None:
    """Prints a table for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[512, 1024, 4096, 16384]
    )
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument(
        "--longest-softmax", type=int, default=4096, help="leave it out above"
    )
    options = parser.parse_args()
    if BACKEND not in ("tensorflow", "torch"):
        parser.error("run it with KERAS_BACKEND=tensorflow or torch")
    torch = BACKEND == "torch"
    makers = torch_variants() if torch else tensorflow_variants()
    names = list(makers)
    for work in WORKS[:2]:
        print(f"\n{BACKEND}, {work}, ms\n")
        print(f"| tokens | {' | '.join(names)} |")
        print("| ---: " * (1 + len(names)) + "|")
        for length in options.lengths:
            shape = rows_of_batch(length), length, WIDTH
            x = np.random.default_rng(0).normal(size=shape).astype("float32")
            programs = {
                name: make(x, work)
                for name, make in makers.items()
                if "softmax" not in name or length <= options.longest_softmax
            }
            times = median_seconds(programs, options.runs)
            cells = [
                f"{times[name] * 1e3:.1f}" if name in times else "-"
                for name in names
            ]
            print(f"| {length:,} | {' | '.join(cells)} |", flush=True)


def tensorflow_variants() -> dict[str, Any]:
    """Returns functions that compile each layer for an input and a work."""
    from official.nlp.modeling.layers.kernel_attention import KernelAttention

    def ours(variant: str) -> Any:
        def make(x: Any, work: str) -> Any:
            layer = make_attention(variant)
            layer.build(x.shape, x.shape)
            return compile_program(layer, (x, x), {}, work)[0]

        return make

    def kernel_attention(x: Any, work: str) -> Any:
        layer = KernelAttention(
            num_random_features=2 * FEATURES, num_heads=HEADS, key_dim=KEY_DIM
        )
        layer(x[:, :1], x[:, :1])  # builds it
        return compile_program(layer, (x, x), {}, work)[0]

    return {
        "softmax": ours("softmax"),
        "KernelAttention": kernel_attention,
        "rfa": ours("rfa"),
    }


def torch_variants() -> dict[str, Any]:
    """Returns functions that prepare each layer for an input and a work."""
    import torch
    from performer_pytorch import SelfAttention

    def program(call: Any, weights: Any, x: Any, work: str) -> Any:
        inputs = torch.tensor(x, requires_grad="gradient" in work)

        def run() -> None:
            if "forward" in work:
                with torch.no_grad():
                    call(inputs)
                return
            loss = torch.sum(torch.square(call(inputs)))
            torch.autograd.grad(loss, [inputs, *weights])

        run()
        return run

    def ours(variant: str) -> Any:
        causal = {"use_causal_mask": True} if "causal" in variant else {}

        def make(x: Any, work: str) -> Any:
            layer = make_attention(variant)
            layer.build(x.shape, x.shape)
            weights = [v.value for v in layer.trainable_variables]
            training = "gradient" in work
            return program(
                lambda x: layer(x, x, training=training, **causal),
                weights,
                x,
                work,
            )

        return make

    def performer(causal: bool) -> Any:
        def make(x: Any, work: str) -> Any:
            with contextlib.redirect_stdout(sys.stderr):
                layer = SelfAttention(
                    WIDTH,
                    causal=causal,
                    heads=HEADS,
                    dim_head=KEY_DIM,
                    nb_features=2 * FEATURES,
                )
            return program(layer, list(layer.parameters()), x, work)

        return make

    return {
        "softmax": ours("softmax"),
        "performer-pytorch": performer(False),
        "rfa": ours("rfa"),
        "softmax causal": ours("softmax causal"),
        "performer-pytorch causal": performer(True),
        "rfa causal": ours("rfa causal"),
    }


if __name__ == "__main__":
    main()
